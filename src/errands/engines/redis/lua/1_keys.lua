-- What is stored, and where. Every name begins with BASE, `{prefix}:`, so that all keys of one store are in one slot
-- of a cluster and one script may touch them together. Python builds the same names in schema.py.
--
--   task:ID              hash: record, attempt, worker, due_at, claimed, agent, snapshot, folded. `record` is JSON and
--                        changes with commits only; attempt, worker, due_at and claimed are fields of their own because
--                        claims and heartbeats write them here, without knowing JSON.
--   log:ID               stream: the events; an id is `VERSION-TIME`, the first field is the kind, its value the data; the
--                        field `lease` is a JSON array, see `errands.model.log.LeaseRecord`
--   queue:AGENT          sorted set of ids by due_at: what is ready and what is leased
--   records:ID           stream: the records among the events that were trimmed, under their former ids
--   agents               set of the agents that have, or had, a queue
--   list:SCOPE[:...]     sorted sets of ids by -status_at, so that the newest come first and ties go by id
--   receipt:SCOPE:DIGEST "AT ID" of an accepted message; expires; does not count once its task is deleted
--   canceling            set of live tasks that are to be canceled
--   asking               sorted set of tasks that wait for one user's answer, by status_at
--   paused:AGENT         sorted set of paused tasks that no worker holds, by status_at
--   aging:AGENT          the same tasks by created_at
--   ended:STATE          sorted set of the tasks that ended in this state, by updated_at
--   long                 sorted set of tasks with a long log, by the events that are kept
--   pushes:ID            hash of the task's push configs: what each is, and how far the log was delivered
--   outbox:HOST AGENT    sorted set of the configs with something to deliver, by the time when they are due
--   dead:AGENT           set of the configs that are dead letters
--   hosts:AGENT          sorted set of the hosts of these, by the time of their first
--   context:SCOPE:ID     what an agent remembers; `contexts` is the sorted set of them by time
--   accesses             sorted set of the entries of the access log, as JSON, by their times
--   processes, reported  hash of the reports of processes, as JSON; sorted set of these processes by the times of that
--   answer:PROCESS       the number of the last batch of a process and what it was answered; expires
--   schema               the version of all this
--   sweeper, swept       which process applies retention right now, expires; when that last began
--   probe                written by readiness, expires
--
-- ARGV[1] is BASE, ARGV[2] a batch's number or '' for reading, the others are requests in MessagePack, answered one after
-- the other. KEYS[1] is where the batch's answer is kept.

local BASE = ARGV[1]
local requests = {}

-- What a change is judged against, in the order of schema.FIELDS; '' for what is missing.
local function fields_of(id)
    local fields = redis.pcall('HMGET', BASE .. 'task:' .. id, 'record', 'attempt', 'worker', 'due_at', 'claimed')
    for n = 1, 5 do
        fields[n] = fields[n] or ''
    end
    return fields
end

local function same(found, expected)
    for n = 1, 5 do
        if found[n] ~= expected[n] then
            return false
        end
    end
    return true
end

-- The id before the first event after a version.
local function after_version(version)
    return '(' .. version .. '-18446744073709551615'
end

-- Those of a log's entries that are records.
local function records_in(entries)
    local records = {}
    for _, entry in ipairs(entries) do
        if entry[2][1] == 'record' then
            records[#records + 1] = entry
        end
    end
    return records
end

local function run(commands)
    for _, command in ipairs(commands) do
        redis.call(unpack(command))
    end
end
