-- Answers the requests. The answer to a batch that writes is kept beside what it wrote: when the connection breaks before
-- the answer arrives, the same batch is sent again, and one that was done is not done twice but answered again. Numbers
-- only rise, so a batch that was delayed on its way and arrives late does nothing either.

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
    local request = cmsgpack.unpack(ARGV[n])
    local done, answer = pcall(requests[request.request], request)
    if not done then
        -- It fails alone: what the others wrote cannot be undone, and must not be called failed.
        answer = redis.error_reply(type(answer) == 'table' and answer.err or tostring(answer))
    end
    answers[#answers + 1] = answer
end
if number then
    redis.call('SET', KEYS[1], cmsgpack.pack({number, answers}), 'PX', 3600000)
end
return answers
