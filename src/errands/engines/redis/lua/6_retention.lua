-- Deletes a task that is still as expected, with its log. Its receipts no longer count, and expire.
requests.delete = function(request)
    local found = fields_of(request.id)
    if not same(found, request.expected) then
        return {'stale', unpack(found)}
    end
    run(request.commands)
    drop_entries(request.id)
    return {'written'}
end

-- Trims a log, if its task is still as expected; the records of that part are moved out of it.
requests.trim = function(request)
    local found = fields_of(request.id)
    if not same(found, request.expected) then
        return {'stale', unpack(found)}
    end
    local log, records = BASE .. 'log:' .. request.id, BASE .. 'records:' .. request.id
    local kept = records_in(redis.call('XRANGE', log, '-', request.upto))
    -- First, because a server whose memory is full accepts commands that free some, and then the others.
    redis.call('XTRIM', log, 'MINID', string.format('%d', request.upto + 1))
    for _, entry in ipairs(kept) do
        redis.call('XADD', records, entry[1], unpack(entry[2]))
    end
    run(request.commands)
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

-- Deletes some contexts that have not changed since a moment; answers how many it looked at, and how many it left.
requests.delete_contexts = function(request)
    local old = redis.call('ZRANGEBYSCORE', BASE .. 'contexts', '-inf', request.before, 'LIMIT', request.skip, request.limit)
    local left = 0
    for _, context in ipairs(old) do
        if is_live(context, request.live) then
            left = left + 1
        else
            redis.call('DEL', BASE .. 'context:' .. context)
            redis.call('ZREM', BASE .. 'contexts', context)
        end
    end
    return {tostring(#old), tostring(left)}
end

-- Replaces the report of a process, and deletes those of processes that have been silent since a moment.
requests.report = function(request)
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', BASE .. 'reported', '-inf', request.before)) do
        redis.call('HDEL', BASE .. 'processes', id)
        redis.call('ZREM', BASE .. 'reported', id)
    end
    redis.call('HSET', BASE .. 'processes', request.id, request.report)
    redis.call('ZADD', BASE .. 'reported', request.at, request.id)
    return 1
end
