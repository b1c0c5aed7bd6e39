-- The outbox. An entry is kept as MessagePack: host, agent, config (JSON), delivered, claim, attempts, failed_at, error,
-- dead. When it is due is its score in the queue of its host; it is in none while there is nothing to deliver.

-- Nil without such an entry, and if it cannot be read.
local function read_entry(id, config)
    local packed = redis.call('HGET', BASE .. 'pushes:' .. id, config)
    local readable, entry = pcall(cmsgpack.unpack, packed or '')
    return packed and readable and type(entry) == 'table' and entry.host and entry.agent and entry.claim and entry or nil
end

local function write_entry(id, config, entry)
    redis.call(entry.dead and 'SADD' or 'SREM', BASE .. 'dead:' .. entry.agent, cmsgpack.pack({id, config}))
    redis.call('HSET', BASE .. 'pushes:' .. id, config, cmsgpack.pack(entry))
end

-- No host has a space.
local function queue_of(host, agent)
    return BASE .. 'outbox:' .. host .. ' ' .. agent
end

local function due_at(id, config, entry)
    return redis.call('ZSCORE', queue_of(entry.host, entry.agent), cmsgpack.pack({id, config}))
end

-- Notes when the first entry of a host is due.
local function note_host(host, agent)
    local first = redis.call('ZRANGE', queue_of(host, agent), 0, 0, 'WITHSCORES')
    if first[1] then
        redis.call('ZADD', BASE .. 'hosts:' .. agent, first[2], host)
    else
        redis.call('ZREM', BASE .. 'hosts:' .. agent, host)
    end
end

-- Makes an entry due at a time; '' for when there is more to deliver.
local function schedule(id, config, entry, at)
    local queue, member = queue_of(entry.host, entry.agent), cmsgpack.pack({id, config})
    if at == '' then
        redis.call('ZREM', queue, member)
    else
        redis.call('ZADD', queue, at, member)
    end
    note_host(entry.host, entry.agent)
end

local function drop_entry(id, config)
    local entry = read_entry(id, config)
    if entry then
        schedule(id, config, entry, '')
        redis.call('SREM', BASE .. 'dead:' .. entry.agent, cmsgpack.pack({id, config}))
    end
    redis.call('HDEL', BASE .. 'pushes:' .. id, config)
end

local function drop_entries(id)
    for _, config in ipairs(redis.call('HKEYS', BASE .. 'pushes:' .. id)) do
        drop_entry(id, config)
    end
end

-- What a change does to the outbox. A config that replaces another continues where that was, and is tried now.
local function fill_outbox(id, at, change)
    local push = change.push
    if push then
        local before = read_entry(id, push.id)
        local entry = {
            host = push.host, agent = push.agent, config = push.config, delivered = push.delivered,
            claim = 0, attempts = 0, failed_at = '', error = '', dead = false,
        }
        if before then
            schedule(id, push.id, before, '')
            entry.delivered, entry.claim = before.delivered, before.claim + 1
            schedule(id, push.id, entry, at)
        end
        write_entry(id, push.id, entry)
    end
    if change.drop_push then
        drop_entry(id, change.drop_push)
    end
    if change.fills then
        for _, config in ipairs(redis.call('HKEYS', BASE .. 'pushes:' .. id)) do
            local entry = read_entry(id, config)
            if entry and not entry.dead and not due_at(id, config, entry) then
                schedule(id, config, entry, at)
            end
        end
    end
end

-- An entry as it is answered: the task, the config, the entry, the task's record, when it is due.
local function shown(id, config, entry, record)
    return {id, config, cmsgpack.pack(entry), record, due_at(id, config, entry) or ''}
end

-- Leases due entries of some hosts, the longest due first; `wanted` has hosts and numbers in turn.
requests.lease_entries = function(request)
    local leased = {}
    for n = 1, #request.wanted, 2 do
        local host = request.wanted[n]
        local queue = queue_of(host, request.agent)
        local found = redis.call('ZRANGEBYSCORE', queue, '-inf', request.now, 'LIMIT', 0, request.wanted[n + 1])
        for _, member in ipairs(found) do
            local id, config = unpack(cmsgpack.unpack(member))
            local entry, record = read_entry(id, config), redis.call('HGET', BASE .. 'task:' .. id, 'record')
            if entry and record then
                entry.claim = entry.claim + 1
                write_entry(id, config, entry)
                redis.call('ZADD', queue, request.expires, member)
                leased[#leased + 1] = shown(id, config, entry, record)
            else
                redis.call('ZREM', queue, member) -- keys were removed by hand
            end
        end
        note_host(host, request.agent)
    end
    return leased
end

local function version_in(record)
    return cjson.decode(record).head.version
end

-- Notes what came of leased entries; answers for each whether its lease was not taken over.
requests.settle_entries = function(request)
    local answers = {}
    for n, delivery in ipairs(request.deliveries) do
        local id, config = delivery.task_id, delivery.config_id
        local entry, record = read_entry(id, config), redis.call('HGET', BASE .. 'task:' .. id, 'record')
        if entry and record and entry.claim == delivery.claim then
            for _, name in ipairs({'delivered', 'attempts', 'failed_at', 'error', 'dead'}) do
                entry[name] = delivery[name]
            end
            local at = delivery.due_at
            if entry.dead then
                at = ''
            elseif at == '' then
                local readable, version = pcall(version_in, record)
                at = readable and version > delivery.delivered and request.now or ''
            end
            write_entry(id, config, entry)
            schedule(id, config, entry, at)
            answers[n] = 1
        else
            answers[n] = 0
        end
    end
    return answers
end

-- Makes an entry due and forgets its failures; answers whether there is one.
requests.retry_entry = function(request)
    local entry = read_entry(request.id, request.config)
    if not entry then
        return 0
    end
    entry.claim, entry.attempts, entry.failed_at, entry.error, entry.dead = entry.claim + 1, 0, '', '', false
    write_entry(request.id, request.config, entry)
    schedule(request.id, request.config, entry, request.now)
    return 1
end

-- The entries of some tasks.
requests.entries = function(request)
    local entries = {}
    for _, id in ipairs(request.ids) do
        local record = redis.call('HGET', BASE .. 'task:' .. id, 'record')
        for _, config in ipairs(record and redis.call('HKEYS', BASE .. 'pushes:' .. id) or {}) do
            local entry = read_entry(id, config)
            if entry then
                entries[#entries + 1] = shown(id, config, entry, record)
            end
        end
    end
    return entries
end
