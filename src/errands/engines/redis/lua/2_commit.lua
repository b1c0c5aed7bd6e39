-- Writes one change, if the task still stands as it stood when Python judged the change; otherwise tells how it stands.
-- Without `expected` it only looks. A receipt is checked first, as the port wants it.

local function known_receipt(job)
    local known = job.receipt and redis.call('GET', job.receipt)
    if known then
        local at, task = string.match(known, '^(%-?%d+) (.*)$')
        if at and tonumber(at) >= job.receipt_since and redis.call('EXISTS', BASE .. 'task:' .. task) == 1 then
            return task
        end
    end
end

jobs.commit = function(job)
    local task = known_receipt(job)
    if task then
        return {'duplicate', task}
    end
    local found = stand_of(job.id)
    if not job.expected or not same(found, job.expected) then
        return {'stale', unpack(found)}
    end
    local events, log = job.events, BASE .. 'log:' .. job.id
    for n = 1, #events, 2 do
        local version = string.format('%d-0', job.first + (n - 1) / 2)
        redis.call('XADD', log, version, events[n], events[n + 1])
    end
    run(job.commands)
    if job.ends then
        -- A stream that grows keeps 4 kB ready for what comes next; stored anew it takes what it needs. Where these
        -- commands are not allowed it stays as it is.
        local content = redis.pcall('DUMP', log)
        if type(content) == 'string' then
            redis.pcall('RESTORE', log, '0', content, 'REPLACE')
        end
    end
    if #events > 0 then
        local news = cmsgpack.pack({job.origin, job.first, job.state, events})
        redis.call('PUBLISH', BASE .. 'events:' .. job.id, news)
    end
    return {'written'}
end

-- Removes a task that still stands as expected, with its log and those of its receipts that no other task has replaced.
-- Their memory is freed beside the commands of others; receipts that are too many for that are left to expire.
jobs.forget = function(job)
    local found = stand_of(job.id)
    if not same(found, job.expected) then
        return {'stale', unpack(found)}
    end
    local task = BASE .. 'task:' .. job.id
    local fields = redis.call('HLEN', task) > job.most and {} or redis.call('HKEYS', task)
    for _, field in ipairs(fields) do
        if string.sub(field, 1, 2) == 'r:' then
            local receipt = BASE .. 'receipt:' .. string.sub(field, 3)
            local known = redis.call('GET', receipt)
            if known and string.match(known, '^%-?%d+ (.*)$') == job.id then
                redis.call('DEL', receipt)
            end
        end
    end
    run(job.commands)
    return {'written'}
end

-- What needs no judgement: all of it, at once.
jobs.run = function(job)
    run(job.commands)
    return {'written'}
end
