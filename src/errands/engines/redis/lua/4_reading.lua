-- Looking: each job is one consistent look.

-- Tasks with snapshot and tail, in the given order; {} for one that does not exist. `most` bytes of them, if it is given,
-- but one task in any case.
jobs.load = function(job)
    local tasks, bytes = {}, 0
    for n, id in ipairs(job.ids) do
        local task = stand_of(id)
        if task[1] ~= '' then
            local content = redis.call('HMGET', BASE .. 'task:' .. id, 'snapshot', 'folded')
            local tail = redis.pcall('XRANGE', BASE .. 'log:' .. id, '(' .. (content[2] or '0'), '+')
            if tail.err then
                content[1] = '' -- without the log nothing can be told from it: Python takes the task for damaged
            end
            local wanted, before = {}, bytes
            bytes = bytes + #(content[1] or '')
            for _, entry in ipairs(tail) do
                local kind = entry[2][1]
                if kind ~= 'record' and (job.with_artifacts or kind ~= 'artifact') then
                    wanted[#wanted + 1] = entry
                    bytes = bytes + #entry[2][2]
                end
            end
            if job.most and before > 0 and bytes > job.most then
                break
            end
            task[5], task[6] = content[1] or '', wanted
            tasks[n] = task
        else
            tasks[n] = {}
        end
    end
    return tasks
end

-- A slice of a log, as many events as begin within `bytes`, and the record, which tells whose task it is and how far its
-- log is cut off.
jobs.read = function(job)
    local record = redis.call('HGET', BASE .. 'task:' .. job.id, 'record')
    if not record then
        return {}
    end
    local events, bytes, after = {}, 0, job.after
    repeat
        local count = math.min(job.limit - #events, 32) -- a few at a time, because they may be large
        local found = redis.call('XRANGE', BASE .. 'log:' .. job.id, '(' .. after, '+', 'COUNT', count)
        for _, entry in ipairs(found) do
            if bytes < job.bytes then
                events[#events + 1] = entry
                bytes = bytes + #entry[2][2]
                after = entry[1]
            end
        end
    until #found < count or #events >= job.limit or bytes >= job.bytes
    return {record, events}
end

-- The records of a task, those of the part that was cut off first.
jobs.records = function(job)
    local record = redis.call('HGET', BASE .. 'task:' .. job.id, 'record')
    if not record then
        return {}
    end
    local records = redis.call('XRANGE', BASE .. 'records:' .. job.id, '-', '+')
    for _, entry in ipairs(records_in(redis.call('XRANGE', BASE .. 'log:' .. job.id, '-', '+'))) do
        records[#records + 1] = entry
    end
    return {record, records}
end

-- How some tasks stand, without their content.
jobs.stands = function(job)
    local stands = {}
    for n, id in ipairs(job.ids) do
        stands[n] = stand_of(id)
    end
    return stands
end

local function is_as_old(record, as_of)
    return cjson.decode(record).head.created_at <= as_of
end

-- A step of the second phase of a listing: ids of tasks whose status is newer than the listing, but which are not. Before
-- them how many were looked at, and the score of the last. Towards the newest, where those go that change meanwhile.
jobs.changed = function(job)
    local ids = {}
    local found = redis.call('ZREVRANGEBYSCORE', job.listing, job.newer, '-inf', 'WITHSCORES', 'LIMIT', 0, job.limit)
    for n = 1, #found, 2 do
        local record = redis.call('HGET', BASE .. 'task:' .. found[n], 'record')
        local readable, is_old = pcall(is_as_old, record, job.as_of)
        if record and (not readable or is_old) then
            ids[#ids + 1] = found[n]
        end
    end
    return {#found / 2, found[#found] or '', ids}
end

-- The tasks that somebody holds: ids and how they stand. What is ready was due before, so only leases are looked at.
jobs.running = function(job)
    local held = {}
    for _, agent in ipairs(redis.call('SMEMBERS', BASE .. 'agents')) do
        for _, id in ipairs(redis.call('ZRANGEBYSCORE', BASE .. 'queue:' .. agent, '(' .. job.now, '+inf')) do
            local found = stand_of(id)
            if found[3] ~= '' then
                held[#held + 1] = {id, unpack(found)}
            end
        end
    end
    return held
end

-- The tasks a worker holds that somebody wants canceled.
jobs.canceling = function(job)
    local ids = {}
    for _, id in ipairs(redis.call('SMEMBERS', BASE .. 'canceling')) do
        if redis.call('HGET', BASE .. 'task:' .. id, 'worker') == job.worker then
            ids[#ids + 1] = id
        end
    end
    return ids
end
