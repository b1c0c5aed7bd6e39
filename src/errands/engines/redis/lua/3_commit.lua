-- The message's receipt as it is stored, '' if there is none that counts.
local function receipt_of(request)
    local receipt = request.receipt and redis.call('GET', request.receipt)
    local task = receipt and string.match(receipt, '^%-?%d+ (.*)$')
    return task and redis.call('EXISTS', BASE .. 'task:' .. task) == 1 and receipt or ''
end

-- Writes one change, if its task and receipt are still what Python judged the change against; otherwise answers what they
-- are. Without `expected` it only looks.
requests.commit = function(request)
    local found, receipt = fields_of(request.id), receipt_of(request)
    if not request.expected or receipt ~= request.expected_receipt or not same(found, request.expected) then
        return {'stale', receipt, unpack(found)}
    end
    local events, log = request.events, BASE .. 'log:' .. request.id
    for n = 1, #events, 2 do
        local id = string.format('%d-%s', request.first + (n - 1) / 2, request.at)
        if n == 1 and request.lease ~= '' then
            redis.call('XADD', log, id, events[n], events[n + 1], 'lease', request.lease)
        else
            redis.call('XADD', log, id, events[n], events[n + 1])
        end
    end
    run(request.commands)
    if request.outbox then
        fill_outbox(request.id, request.at, request.outbox)
    end
    if request.ends then
        -- A stream that grows keeps 4 kB ready for what comes next; stored anew it takes what it needs. Where these
        -- commands are not allowed it stays as it is.
        local content = redis.pcall('DUMP', log)
        if type(content) == 'string' then
            redis.pcall('RESTORE', log, '0', content, 'REPLACE')
        end
    end
    if #events > 0 then
        local news = {request.origin, request.first, request.state, request.at, request.lease, events}
        redis.call('PUBLISH', BASE .. 'events:' .. request.id, cmsgpack.pack(news))
    end
    return {'written'}
end

-- Runs commands that need no judgement.
requests.run = function(request)
    run(request.commands)
    return {'written'}
end
