-- Leases are decided here and not in Python: nothing is to be judged, and however many replicas claim at the same
-- moment, none of them gets nothing because another was faster.

-- Leases due tasks, the longest due first, and answers their ids and attempts in turn.
requests.claim = function(request)
    local due = {}
    for _, agent in ipairs(request.agents) do
        local queue = BASE .. 'queue:' .. agent
        local found = redis.call('ZRANGEBYSCORE', queue, '-inf', request.now, 'WITHSCORES', 'LIMIT', 0, request.limit)
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
    for n = 1, math.min(#due, request.limit) do
        local id, task = due[n].id, BASE .. 'task:' .. due[n].id
        if redis.pcall('HEXISTS', task, 'record') == 1 then
            local attempt = redis.pcall('HINCRBY', task, 'attempt', 1)
            if type(attempt) == 'table' then -- it was not a number
                attempt = 1
                redis.call('HSET', task, 'attempt', '1')
            end
            local before = redis.call('HGET', task, 'worker')
            local how = (not before or before == '') and 'ready' or 'expired'
            redis.call('HSET', task, 'worker', request.worker, 'due_at', request.expires, 'claimed', how)
            redis.call('ZADD', due[n].queue, request.expires, id)
            claimed[#claimed + 1] = id
            claimed[#claimed + 1] = tostring(attempt)
        else
            redis.call('ZREM', due[n].queue, id) -- keys were removed by hand
        end
    end
    return claimed
end

-- Extends leases, and answers for each whether it is 'lost', to be canceled ('cancel') or 'fine'.
requests.extend = function(request)
    local signals = {}
    for n = 1, #request.leases, 2 do
        local id = request.leases[n]
        local task = BASE .. 'task:' .. id
        local found = redis.call('HMGET', task, 'attempt', 'worker', 'agent')
        local signal = 'lost'
        if found[1] == request.leases[n + 1] and found[2] == request.worker then
            redis.call('HSET', task, 'due_at', request.expires)
            redis.call('ZADD', BASE .. 'queue:' .. found[3], request.expires, id)
            signal = redis.call('SISMEMBER', BASE .. 'canceling', id) == 1 and 'cancel' or 'fine'
        end
        signals[#signals + 1] = signal
    end
    return signals
end
