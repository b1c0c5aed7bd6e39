-- Reading: each answer is one consistent view.

-- Whether a task belongs to another scope than the one that is asked for. Its content is not even read then, so that it
-- takes no longer than a task that does not exist.
local function is_foreign(record, scope)
    local readable, task = pcall(cjson.decode, record)
    if not scope or not readable or type(task.scope) ~= 'table' then
        return false -- Python decides
    end
    return task.scope[1] ~= scope[1] or task.scope[2] ~= scope[2] or task.scope[3] ~= scope[3]
end

-- Tasks with snapshot and tail, in the given order; {} for one that does not exist, or not in `scope`. `most` bytes of them, if it is given,
-- but one task in any case, unless `only_small`: then the answer is how many bytes there are instead.
requests.load = function(request)
    local tasks, bytes = {}, 0
    for n, id in ipairs(request.ids) do
        local task = fields_of(id)
        if task[1] ~= '' and not is_foreign(task[1], request.scope) then
            local content = redis.call('HMGET', BASE .. 'task:' .. id, 'snapshot', 'folded')
            local tail = redis.pcall('XRANGE', BASE .. 'log:' .. id, after_version(content[2] or '0'), '+')
            if tail.err then
                content[1] = '' -- nothing can be told without the log: Python takes the task for damaged
            end
            local wanted, before = {}, bytes
            bytes = bytes + #(content[1] or '')
            for _, entry in ipairs(tail) do
                local kind = entry[2][1]
                if kind ~= 'record' and (request.with_artifacts or kind ~= 'artifact') then
                    wanted[#wanted + 1] = entry
                    bytes = bytes + #entry[2][2]
                end
            end
            if request.most and bytes > request.most then
                if request.only_small then
                    return bytes
                elseif before > 0 then
                    break
                end
            end
            task[6], task[7] = content[1] or '', wanted
            tasks[n] = task
        else
            tasks[n] = {}
        end
    end
    return tasks
end

-- A slice of a log, as many events as begin within `bytes`, after the record, which tells the scope and how far the log is
-- trimmed.
requests.read = function(request)
    local record = redis.call('HGET', BASE .. 'task:' .. request.id, 'record')
    if not record then
        return {}
    end
    local events, bytes, after = {}, 0, after_version(request.after)
    repeat
        local count = math.min(request.limit - #events, 32) -- a few at a time, because they may be large
        local found = redis.call('XRANGE', BASE .. 'log:' .. request.id, after, '+', 'COUNT', count)
        for _, entry in ipairs(found) do
            if bytes < request.bytes then
                events[#events + 1] = entry
                bytes = bytes + #entry[2][2]
                after = '(' .. entry[1]
            end
        end
    until #found < count or #events >= request.limit or bytes >= request.bytes
    return {record, events}
end

-- The records of a task, those of the trimmed part first.
requests.records = function(request)
    local record = redis.call('HGET', BASE .. 'task:' .. request.id, 'record')
    if not record then
        return {}
    end
    local records = redis.call('XRANGE', BASE .. 'records:' .. request.id, '-', '+')
    for _, entry in ipairs(records_in(redis.call('XRANGE', BASE .. 'log:' .. request.id, '-', '+'))) do
        records[#records + 1] = entry
    end
    return {record, records}
end

-- Some tasks without their content.
requests.look = function(request)
    local tasks = {}
    for n, id in ipairs(request.ids) do
        tasks[n] = fields_of(id)
    end
    return tasks
end

local function is_as_old(record, as_of)
    return cjson.decode(record).head.created_at <= as_of
end

-- A step of the second phase of a listing: how many tasks were looked at, the score of the last, and the ids of those that
-- are older than the listing but have a newer status. It walks towards the newest, where tasks go that change now.
requests.since_changed = function(request)
    local ids = {}
    local found = redis.call('ZREVRANGEBYSCORE', request.listing, request.newer, '-inf', 'WITHSCORES', 'LIMIT', 0, request.limit)
    for n = 1, #found, 2 do
        local record = redis.call('HGET', BASE .. 'task:' .. found[n], 'record')
        local readable, is_old = pcall(is_as_old, record, request.as_of)
        if record and (not readable or is_old) then
            ids[#ids + 1] = found[n]
        end
    end
    return {#found / 2, found[#found] or '', ids}
end

-- The tasks that are leased now: ids and fields. Tasks that are ready were due before, so only leases are looked at.
requests.running = function(request)
    local held = {}
    for _, agent in ipairs(redis.call('SMEMBERS', BASE .. 'agents')) do
        for _, id in ipairs(redis.call('ZRANGEBYSCORE', BASE .. 'queue:' .. agent, '(' .. request.now, '+inf')) do
            local found = fields_of(id)
            if found[3] ~= '' then
                held[#held + 1] = {id, unpack(found)}
            end
        end
    end
    return held
end

-- The tasks that a worker holds and that are to be canceled.
requests.canceling = function(request)
    local ids = {}
    for _, id in ipairs(redis.call('SMEMBERS', BASE .. 'canceling')) do
        if redis.call('HGET', BASE .. 'task:' .. id, 'worker') == request.worker then
            ids[#ids + 1] = id
        end
    end
    return ids
end

-- How many bytes of memory some tasks take, about: of a long log the server measures a sample.
requests.bytes = function(request)
    local bytes = 0
    for _, id in ipairs(request.ids) do
        for _, kind in ipairs({'task:', 'log:', 'records:'}) do
            bytes = bytes + (redis.call('MEMORY', 'USAGE', BASE .. kind .. id) or 0)
        end
    end
    return bytes
end
