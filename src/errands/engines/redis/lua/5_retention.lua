-- Cuts a log off, if its task still stands as expected; the records of that part are moved out of it.
jobs.trim = function(job)
    local found = stand_of(job.id)
    if not same(found, job.expected) then
        return {'stale', unpack(found)}
    end
    local log, records = BASE .. 'log:' .. job.id, BASE .. 'records:' .. job.id
    local kept = records_in(redis.call('XRANGE', log, '-', job.upto))
    -- First, because a server whose memory is full takes what frees some, and then the rest.
    redis.call('XTRIM', log, 'MINID', string.format('%d', job.upto + 1))
    for _, entry in ipairs(kept) do
        redis.call('XADD', records, entry[1], 'record', entry[2][2])
    end
    run(job.commands)
    return {'written'}
end

-- Whether a conversation has a task in one of these states. Its name is `SCOPE:ID`, and no scope has a colon.
local function is_live(context, states)
    local scope, id = string.match(context, '^([^:]*):(.*)$')
    for _, state in ipairs(states) do
        if redis.call('EXISTS', BASE .. 'list:' .. scope .. ':' .. state .. '::' .. id) == 1 then
            return true
        end
    end
    return false
end

-- Removes some contexts that have not changed since a moment; says how many it looked at, and how many it left.
jobs.forget_contexts = function(job)
    local old = redis.call('ZRANGEBYSCORE', BASE .. 'contexts', '-inf', job.before, 'LIMIT', job.skip, job.limit)
    local left = 0
    for _, context in ipairs(old) do
        if is_live(context, job.live) then
            left = left + 1
        else
            redis.call('DEL', BASE .. 'context:' .. context)
            redis.call('ZREM', BASE .. 'contexts', context)
        end
    end
    return {tostring(#old), tostring(left)}
end
