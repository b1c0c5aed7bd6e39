-- Runs the jobs. The answer to a batch that writes is kept beside what it wrote: when the connection breaks before the
-- answer arrives, the same batch is sent again, and one that was done is not done twice but answered again. Numbers only
-- rise, so one that was held up on its way and arrives late does nothing either.

local number = tonumber(ARGV[2])
if number then
    local kept = redis.call('GET', KEYS[1])
    local last = kept and cmsgpack.unpack(kept)
    if last and last[1] >= number then
        return last[2]
    end
end
local answers = {}
for n = 3, #ARGV do
    local job = cmsgpack.unpack(ARGV[n])
    local done, answer = pcall(jobs[job.job], job)
    if not done then
        -- It fails alone: what the others wrote cannot be taken back, and must not be called failed.
        answer = redis.error_reply(type(answer) == 'table' and answer.err or tostring(answer))
    end
    answers[#answers + 1] = answer
end
if number then
    redis.call('SET', KEYS[1], cmsgpack.pack({number, answers}), 'PX', 3600000)
end
return answers
