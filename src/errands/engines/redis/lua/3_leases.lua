-- Leases are decided here and not in Python: nothing is to be judged, and however many replicas claim at the same
-- moment, none of them goes away empty-handed because another was faster.

-- Gives out due tasks, the longest due first: ids and attempts in turn.
jobs.claim = function(job)
    local due = {}
    for _, agent in ipairs(job.agents) do
        local queue = BASE .. 'queue:' .. agent
        local found = redis.call('ZRANGEBYSCORE', queue, '-inf', job.now, 'WITHSCORES', 'LIMIT', 0, job.limit)
        for n = 1, #found, 2 do
            due[#due + 1] = {at = tonumber(found[n + 1]), order = #due, id = found[n], queue = queue}
        end
    end
    table.sort(due, function(one, other)
        if one.at ~= other.at then
            return one.at < other.at
        end
        return one.order < other.order
    end)
    local claimed = {}
    for n = 1, math.min(#due, job.limit) do
        local id, task = due[n].id, BASE .. 'task:' .. due[n].id
        if redis.pcall('HEXISTS', task, 'record') == 1 then
            local attempt = redis.pcall('HINCRBY', task, 'attempt', 1)
            if type(attempt) == 'table' then -- it was not a number
                attempt = 1
                redis.call('HSET', task, 'attempt', '1')
            end
            redis.call('HSET', task, 'worker', job.worker, 'due_at', job.expires)
            redis.call('ZADD', due[n].queue, job.expires, id)
            claimed[#claimed + 1] = id
            claimed[#claimed + 1] = tostring(attempt)
        else
            redis.call('ZREM', due[n].queue, id) -- somebody removed keys by hand
        end
    end
    return claimed
end

-- Extends leases; says of each whether it is 'lost', wanted canceled or 'fine'.
jobs.extend = function(job)
    local signals = {}
    for n = 1, #job.leases, 2 do
        local id = job.leases[n]
        local task = BASE .. 'task:' .. id
        local found = redis.call('HMGET', task, 'attempt', 'worker', 'agent')
        local signal = 'lost'
        if found[1] == job.leases[n + 1] and found[2] == job.worker then
            redis.call('HSET', task, 'due_at', job.expires)
            redis.call('ZADD', BASE .. 'queue:' .. found[3], job.expires, id)
            signal = redis.call('SISMEMBER', BASE .. 'canceling', id) == 1 and 'cancel' or 'fine'
        end
        signals[#signals + 1] = signal
    end
    return signals
end
