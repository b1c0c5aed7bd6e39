-- Every statement of the engine. `-- name:` begins one; the sentence below it says what it does.
-- `{record}` stands for the fragment of that name. Tables are found by the connection's search path.

-- fragment: record
-- A task's row, in the order of `queries.read_row`.
tasks.no, tasks.id, tasks.tenant, tasks.owner, tasks.agent, tasks.context_id, tasks.folded, tasks.trimmed,
tasks.watcher, tasks.version, tasks.state, tasks.attempt, tasks.attempt_base, tasks.given_back, tasks.worker,
tasks.due_at, tasks.claimed, tasks.unread, tasks.cancel_requested, tasks.direct, tasks.asks,
tasks.created_at, tasks.updated_at, tasks.status_at, tasks.pushes

-- fragment: log
-- Events as one array per column, at the end of a row, in the order of `queries.read_events`.
array_agg(version) AS versions, array_agg(kind) AS kinds, array_agg(data) AS data, array_agg(at) AS times,
array_agg(lease) AS leases

-- fragment: columns
-- The columns of that log.
log.versions, log.kinds, log.data, log.times, log.leases

-- name: lock
-- What a batch of changes is judged against; in the order of ids, so that two batches never wait for each other.
SELECT {record} FROM tasks WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE

-- name: known_receipts
-- Which of a batch's receipts are known, by which tasks, since when, and whether the tasks still exist.
SELECT key, task_id, at, EXISTS (SELECT 1 FROM tasks WHERE tasks.id = receipts.task_id)
FROM receipts WHERE key = ANY($1::bytea[])

-- name: numbers
-- A block of numbers for new tasks.
SELECT nextval('task_numbers') FROM generate_series(1, $1::integer)

-- name: store
-- Writes a whole batch and returns how many rows of each kind it has written: fewer than were passed means that another
-- process was faster. It leaves the batch's number behind, by which its fate can be learned later.
WITH stored_tasks AS (
    INSERT INTO tasks (
        id, no, scope, tenant, owner, agent, context_id, version, state, attempt, attempt_base, given_back, worker,
        due_at, claimed, unread, cancel_requested, direct, asks, created_at, updated_at, status_at, folded, trimmed,
        watcher, is_long, pushes
    )
    SELECT * FROM unnest(
        $1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::integer[],
        $9::text[], $10::integer[], $11::integer[], $12::integer[], $13::text[], $14::bigint[], $15::text[],
        $16::integer[], $17::boolean[], $18::boolean[], $19::text[], $20::bigint[], $21::bigint[], $22::bigint[],
        $23::integer[], $24::integer[], $25::text[], $26::boolean[], $53::text[]
    )
    ON CONFLICT (id) DO UPDATE SET
        version = excluded.version, state = excluded.state, attempt = excluded.attempt,
        attempt_base = excluded.attempt_base, given_back = excluded.given_back,
        worker = excluded.worker, due_at = excluded.due_at, claimed = excluded.claimed,
        unread = excluded.unread, cancel_requested = excluded.cancel_requested, direct = excluded.direct,
        asks = excluded.asks, updated_at = excluded.updated_at, status_at = excluded.status_at,
        folded = excluded.folded, watcher = excluded.watcher, is_long = excluded.is_long, pushes = excluded.pushes
    WHERE tasks.no = excluded.no AND tasks.version <= excluded.version AND tasks.attempt <= excluded.attempt
    RETURNING 1
), stored_events AS (
    INSERT INTO events (task, version, kind, data, at, lease)
    SELECT * FROM unnest($27::bigint[], $28::integer[], $29::text[], $30::bytea[], $31::bigint[], $32::text[])
    ON CONFLICT (task, version) DO UPDATE SET data = excluded.data WHERE excluded.version = 0
    RETURNING 1
), stored_receipts AS (
    INSERT INTO receipts (key, task_id, at, expires_at)
    SELECT * FROM unnest($33::bytea[], $34::text[], $35::bigint[], $36::bigint[])
    ON CONFLICT (key) DO UPDATE SET task_id = excluded.task_id, at = excluded.at, expires_at = excluded.expires_at
    -- A receipt expires as long after its change as its window began before it. Whether a task is deleted cannot be asked
    -- here: a task that another process has just created is not visible to this statement.
    WHERE receipts.at < 2 * excluded.at - excluded.expires_at OR receipts.task_id = ANY($52::text[])
    RETURNING 1
), stored_contexts AS (
    INSERT INTO contexts (tenant, owner, agent, context_id, value, updated_at)
    SELECT * FROM unnest($37::text[], $38::text[], $39::text[], $40::text[], $41::bytea[], $42::bigint[])
    ON CONFLICT (tenant, owner, agent, context_id)
    DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at
), stored_tallies AS (
    INSERT INTO tallies (scope, state, shard, tasks)
    SELECT * FROM unnest($43::bigint[], $44::text[], $45::integer[], $46::bigint[])
    ON CONFLICT (scope, state, shard) DO UPDATE SET tasks = tallies.tasks + excluded.tasks
), stored_batch AS (
    INSERT INTO writers (process, lane, batch) VALUES ($49::text, $50::integer, $51::bigint)
    ON CONFLICT (process, lane) DO UPDATE SET batch = excluded.batch, at = now()
)
SELECT
    (SELECT count(*) FROM stored_tasks),
    (SELECT count(*) FROM stored_events),
    (SELECT count(*) FROM stored_receipts),
    (SELECT count(pg_notify($47::text, payload)) FROM unnest($48::text[]) AS payload)

-- name: append
-- The same for a batch of changes that only append events: no index has the columns that change.
WITH stored_tasks AS (
    UPDATE tasks
    SET version = new.version, updated_at = new.updated_at, watcher = new.watcher,
        is_long = new.version - tasks.trimmed > 1000
    FROM unnest($1::text[], $2::integer[], $3::bigint[], $4::text[]) AS new (id, version, updated_at, watcher)
    WHERE tasks.id = new.id AND tasks.version <= new.version
    RETURNING 1
), stored_events AS (
    INSERT INTO events (task, version, kind, data, at)
    SELECT * FROM unnest($5::bigint[], $6::integer[], $7::text[], $8::bytea[], $9::bigint[])
    ON CONFLICT (task, version) DO NOTHING
    RETURNING 1
), stored_batch AS (
    INSERT INTO writers (process, lane, batch) VALUES ($12::text, $13::integer, $14::bigint)
    ON CONFLICT (process, lane) DO UPDATE SET batch = excluded.batch, at = now()
)
SELECT
    (SELECT count(*) FROM stored_tasks),
    (SELECT count(*) FROM stored_events),
    (SELECT count(pg_notify($10::text, payload)) FROM unnest($11::text[]) AS payload)

-- name: begin_writing
-- Makes the row of a connection that is going to write, so that `last_batch` waits for a transaction under way.
INSERT INTO writers (process, lane, batch) VALUES ($1, $2, 0) ON CONFLICT (process, lane) DO NOTHING

-- name: note_batch
-- Leaves a batch's number behind if this transaction has written something.
INSERT INTO writers (process, lane, batch)
SELECT $1::text, $2::integer, $3::bigint WHERE pg_current_xact_id_if_assigned() IS NOT NULL
ON CONFLICT (process, lane) DO UPDATE SET batch = excluded.batch, at = now()
RETURNING batch

-- name: last_batch
-- The last batch of a connection that broke; waits until the server has decided about it.
SELECT batch FROM writers WHERE process = $1 AND lane = $2 FOR UPDATE

-- name: end_writing
-- Deletes the row of a connection that is closed.
DELETE FROM writers WHERE process = $1 AND lane = $2

-- name: delete_writers
-- Deletes the rows of processes that died long ago.
DELETE FROM writers WHERE at < now() - interval '30 days'

-- fragment: snapshot_and_tail
-- Of a task's log. The second parameter is false for a tail without artifacts.
FROM (
    SELECT version, kind, data, at, lease FROM events WHERE events.task = tasks.no AND events.version = 0
    UNION ALL
    SELECT version, kind, data, at, lease FROM (
        SELECT version, kind, data, at, lease FROM events
        WHERE events.task = tasks.no AND events.version > tasks.folded AND ($2::boolean OR kind <> 'artifact')
            AND kind <> 'record'
        ORDER BY version
    ) AS tail
) AS content

-- fragment: content
-- Snapshot and tail, at the end of the task's row.
CROSS JOIN LATERAL (SELECT {log} {snapshot_and_tail}) AS log

-- name: load_head
-- One task without its content.
SELECT {record} FROM tasks WHERE id = $1

-- name: load
-- One task in one consistent view: its row, its snapshot and the tail of its log.
SELECT {record}, {columns} FROM tasks {content} WHERE tasks.id = $1

-- fragment: size
-- The bytes of snapshot and tail, for each task of a query, without reading them.
(SELECT coalesce(sum(octet_length(data)), 0)::bigint AS bytes {snapshot_and_tail})

-- name: size
-- The bytes of one task's content.
SELECT {size} FROM tasks WHERE id = $1 AND tenant = $3 AND owner = $4 AND agent = $5

-- name: load_small
-- The same as `load` for a task with no more than so many bytes.
SELECT {record}, {columns}
FROM (SELECT tasks.*, {size} AS bytes FROM tasks WHERE tasks.id = $1) AS tasks {content}
WHERE tasks.bytes <= $3::bigint

-- name: contents
-- The same for several tasks.
SELECT {record}, {columns} FROM tasks {content} WHERE tasks.id = ANY($1::text[])

-- name: contents_within
-- The same for the first of several tasks, in their order, each with its number in it: as many as have no more than so
-- many bytes, and always the first unless $4. Of the others only the lengths are read.
SELECT {record}, {columns}, tasks.place
FROM (
    SELECT tasks.*, wanted.place, row_number() OVER so_far AS rank, sum(size.bytes) OVER so_far AS bytes
    FROM unnest($1::text[]) WITH ORDINALITY AS wanted (id, place)
    JOIN tasks ON tasks.id = wanted.id
    CROSS JOIN LATERAL {size} AS size
    WINDOW so_far AS (ORDER BY wanted.place)
) AS tasks {content}
WHERE tasks.bytes <= $3::bigint OR (tasks.rank = 1 AND NOT $4::boolean)
ORDER BY tasks.place

-- name: read
-- A slice of a log in one consistent view, as many events as begin within $4 bytes, after its task's row.
SELECT {record}, {columns}
FROM tasks
CROSS JOIN LATERAL (
    SELECT {log}
    FROM (
        SELECT *, sum(length(data)) OVER (ORDER BY version) - length(data) AS begins
        FROM (
            SELECT version, kind, data, at, lease FROM events
            WHERE events.task = tasks.no AND events.version > greatest($2::integer, tasks.trimmed)
            ORDER BY version
            LIMIT $3::bigint
        ) AS next
        ORDER BY version
    ) AS slice
    WHERE begins < $4::bigint
) AS log
WHERE tasks.id = $1

-- name: records
-- The records of a task, those of the trimmed part included.
SELECT {record}, {columns}
FROM tasks
CROSS JOIN LATERAL (
    SELECT {log}
    FROM (SELECT * FROM events WHERE events.task = tasks.no AND events.kind = 'record' ORDER BY version) AS records
) AS log
WHERE tasks.id = $1

-- fragment: of_scope
-- The tasks of a scope in one of some states; each state is one run of the index `tasks_listed`.
FROM tasks
WHERE tasks.scope = $1::bigint AND tasks.state = states.state AND tasks.status_at >= $3::bigint
    AND tasks.tenant = $4::text AND tasks.owner = $5::text AND tasks.agent = $6::text

-- fragment: reached
-- The tasks within the reach of a scope.
tasks.agent = $1::text AND ($2::text IS NULL OR tasks.tenant = $2::text) AND ($3::text IS NULL OR tasks.owner = $3::text)

-- fragment: of_owners
-- The tasks that a listing of several owners is about.
FROM tasks
WHERE {reached} AND tasks.state = ANY($4::text[]) AND tasks.status_at >= $5::bigint
    AND ($6::text IS NULL OR tasks.context_id = $6::text)

-- fragment: in_order
-- The first phase of a listing: the tasks after the last one, none newer than the listing.
AND tasks.status_at <= $7::bigint AND tasks.status_at <= $8::bigint AND (tasks.status_at < $8::bigint OR tasks.id > $9::text)
ORDER BY tasks.status_at DESC, tasks.id LIMIT $10::bigint

-- fragment: since_changed
-- The second phase of a listing: the tasks that have left the order since the listing began. With OFFSET they are found by
-- the time of their change: otherwise PostgreSQL would walk all tasks by id, because that is the order of the page.
AND tasks.status_at > $7::bigint AND tasks.created_at <= $7::bigint AND tasks.id > $8::text OFFSET 0

-- name: list_scope_in_order
-- A page of the scope's tasks, first phase.
SELECT found.id, found.status_at
FROM unnest($2::text[]) AS states (state)
CROSS JOIN LATERAL (SELECT tasks.id, tasks.status_at {of_scope} {in_order}) AS found
ORDER BY found.status_at DESC, found.id LIMIT $10::bigint

-- name: list_scope_since_changed
-- A page of the scope's tasks, second phase.
SELECT found.id, found.status_at
FROM unnest($2::text[]) AS states (state)
CROSS JOIN LATERAL (SELECT tasks.id, tasks.status_at {of_scope} {since_changed}) AS found
ORDER BY found.id LIMIT $9::bigint

-- name: count_scope
-- How many tasks of the scope have changed since a moment.
-- Like the tallies it compares the hash alone, so that the index `tasks_listed` has everything that is needed.
SELECT coalesce(sum(found.tasks), 0)::bigint
FROM unnest($2::text[]) AS states (state)
CROSS JOIN LATERAL (
    SELECT count(*) AS tasks FROM tasks
    WHERE tasks.scope = $1::bigint AND tasks.state = states.state AND tasks.status_at >= $3::bigint
) AS found

-- name: tally
-- How many tasks the scope has, without looking at them.
SELECT coalesce(sum(tasks), 0)::bigint FROM tallies WHERE scope = $1::bigint AND state = ANY($2::text[])

-- name: list_owners_in_order
-- A page of the tasks of several owners, first phase.
SELECT tasks.id, tasks.status_at {of_owners} {in_order}

-- name: list_owners_since_changed
-- A page of the tasks of several owners, second phase.
SELECT tasks.id, tasks.status_at {of_owners}
    AND tasks.status_at > $7::bigint AND tasks.created_at <= $7::bigint AND tasks.id > $8::text
ORDER BY tasks.id LIMIT $9::bigint

-- name: count_owners
-- How many tasks of several owners match.
SELECT count(*) {of_owners}

-- name: list_context_in_order
-- A page of a context's tasks, first phase; each state is one run of the index `tasks_of_context`.
SELECT found.id, found.status_at
FROM unnest($2::text[]) AS states (state)
CROSS JOIN LATERAL (
    SELECT tasks.id, tasks.status_at {of_scope} AND tasks.context_id = $11::text {in_order}
) AS found
ORDER BY found.status_at DESC, found.id LIMIT $10::bigint

-- name: list_context_since_changed
-- A page of a context's tasks, second phase.
SELECT found.id, found.status_at
FROM unnest($2::text[]) AS states (state)
CROSS JOIN LATERAL (
    SELECT tasks.id, tasks.status_at {of_scope} AND tasks.context_id = $10::text {since_changed}
) AS found
ORDER BY found.id LIMIT $9::bigint

-- name: count_context
-- How many tasks of the context have changed since a moment, as `count_scope`: in the index `tasks_of_context`.
SELECT coalesce(sum(found.tasks), 0)::bigint
FROM unnest($2::text[]) AS states (state)
CROSS JOIN LATERAL (
    SELECT count(*) AS tasks FROM tasks
    WHERE tasks.context_id = $4::text AND tasks.scope = $1::bigint AND tasks.state = states.state
        AND tasks.status_at >= $3::bigint
) AS found

-- name: asking
-- The tasks that wait for one user's answer; only those are in the index tasks_asking.
SELECT {record}, {columns}
FROM (
    SELECT * FROM tasks
    WHERE asks <> '' AND ($1::text IS NULL OR id = $1) AND ($3::text IS NULL OR tenant = $3)
        AND ($4::text IS NULL OR agent = $4) AND ($5::text[] IS NULL OR asks = ANY($5))
    ORDER BY status_at, id LIMIT $6::bigint
) AS tasks {content}
ORDER BY tasks.status_at, tasks.id

-- name: some_tasks
-- The next tasks of any scope after an id.
SELECT {record}, {columns}
FROM (SELECT * FROM tasks WHERE id > $1 ORDER BY id LIMIT $3::bigint) AS tasks {content}
ORDER BY tasks.id

-- name: load_context
-- The context that was last saved for a conversation.
SELECT value FROM contexts WHERE tenant = $1 AND owner = $2 AND agent = $3 AND context_id = $4

-- name: due
-- The tasks of one agent that may be claimed, the longest due first, without those that another process is claiming.
SELECT id, due_at FROM tasks WHERE agent = $1 AND due_at <= $2 ORDER BY due_at, id LIMIT $3 FOR UPDATE SKIP LOCKED

-- name: lease
-- Leases tasks to a worker; the raised attempt is the fence against the former holder.
UPDATE tasks
SET attempt = attempt + 1, claimed = CASE worker WHEN '' THEN 'ready' ELSE 'expired' END, worker = $2, due_at = $3
WHERE id = ANY($1::text[])

-- name: extend
-- Extends those leases that the worker still holds; returns which, and which are to be canceled.
WITH held AS (
    SELECT id FROM tasks WHERE id = ANY($1::text[]) AND worker = $3 ORDER BY id FOR UPDATE
)
UPDATE tasks SET due_at = $4
FROM held JOIN unnest($1::text[], $2::integer[]) AS wanted (id, attempt) USING (id)
WHERE tasks.id = held.id AND tasks.attempt = wanted.attempt
RETURNING tasks.id, tasks.attempt, tasks.cancel_requested

-- name: longest_due
-- When the longest due task of some agents became due; NULL when none is due.
SELECT min(first.due_at) FROM unnest($1::text[]) AS agents (agent), LATERAL (
    SELECT due_at FROM tasks WHERE tasks.agent = agents.agent AND due_at <= $2 ORDER BY due_at LIMIT 1
) AS first

-- name: wanted_canceled
-- The tasks that a worker holds and that are to be canceled.
SELECT id FROM tasks WHERE worker = $1 AND cancel_requested AND due_at IS NOT NULL

-- name: running
-- The tasks that are leased now; only live ones are in the index tasks_due.
SELECT {record} FROM tasks WHERE due_at IS NOT NULL AND due_at > $1 AND worker <> '' ORDER BY created_at, id

-- name: delete_tasks
-- Deletes ended tasks and updates the tallies. The events of a log that is longer than the bound are left for later.
WITH gone AS (
    DELETE FROM tasks WHERE id = ANY($1::text[]) RETURNING no, version, scope, state
), whole AS (
    SELECT no FROM gone WHERE version <= $2::integer
), gone_events AS (
    DELETE FROM events WHERE task IN (SELECT no FROM whole)
), gone_pushes AS (
    DELETE FROM pushes WHERE task_id = ANY($1::text[])
), left_over AS (
    INSERT INTO remains (task, version) SELECT no, version FROM gone WHERE version > $2::integer
), gone_tallies AS (
    INSERT INTO tallies (scope, state, shard, tasks)
    SELECT scope, state, 0, -count(*) FROM gone GROUP BY scope, state ORDER BY scope, state
    ON CONFLICT (scope, state, shard) DO UPDATE SET tasks = tallies.tasks + excluded.tasks
)
SELECT count(*) FROM gone

-- name: some_remains
-- A deleted task of which events are left, and up to which version, unless another process is removing them.
SELECT task, version FROM remains ORDER BY task LIMIT 1 FOR UPDATE SKIP LOCKED

-- name: delete_events
-- Deletes the events of one task between two versions, the second one included.
DELETE FROM events WHERE task = $1 AND version > $2::integer AND version <= $3::integer

-- name: trim_events
-- The same for the beginning of a log that is kept: records stay.
DELETE FROM events WHERE task = $1 AND version > $2::integer AND version <= $3::integer AND kind <> 'record'

-- name: note_remains
-- Notes up to which version events of a deleted task are left.
UPDATE remains SET version = $2 WHERE task = $1

-- name: delete_remains
-- Notes that no events of a deleted task are left.
DELETE FROM remains WHERE task = $1

-- fragment: ended
-- What retention may delete, word for word as in the index tasks_ended.
state IN ('TASK_STATE_COMPLETED', 'TASK_STATE_FAILED', 'TASK_STATE_CANCELED', 'TASK_STATE_REJECTED')

-- name: ended_before
-- Tasks that ended in one state and have not changed since a moment, the oldest first, and how long their logs are;
-- those that are being written to are left out.
SELECT id, version FROM tasks WHERE {ended} AND state = $1 AND status_at <= $2 AND updated_at <= $2
ORDER BY status_at, id LIMIT $3 FOR UPDATE SKIP LOCKED

-- name: longest_ended
-- The tasks that ended first: the oldest of each state, merged.
SELECT id, version FROM tasks WHERE id IN (
    SELECT oldest.id FROM unnest(
        ARRAY['TASK_STATE_COMPLETED', 'TASK_STATE_FAILED', 'TASK_STATE_CANCELED', 'TASK_STATE_REJECTED']
    ) AS states (state), LATERAL (
        SELECT id, status_at FROM tasks WHERE {ended} AND state = states.state ORDER BY status_at, id LIMIT $1
    ) AS oldest
    ORDER BY oldest.status_at, oldest.id LIMIT $1
) FOR UPDATE SKIP LOCKED

-- name: count_ended
-- How many ended tasks there are.
SELECT coalesce(sum(tasks), 0)::bigint FROM tallies WHERE {ended}

-- name: delete_contexts
-- Deletes some contexts that have not changed since a moment, in conversations without a live task; returns how many.
WITH gone AS (
    DELETE FROM contexts WHERE (tenant, owner, agent, context_id) IN (
        SELECT tenant, owner, agent, context_id FROM contexts
        WHERE updated_at <= $1 AND NOT EXISTS (
            SELECT 1 FROM tasks
            WHERE tasks.context_id = contexts.context_id AND tasks.tenant = contexts.tenant
                AND tasks.owner = contexts.owner AND tasks.agent = contexts.agent AND NOT ({ended})
        )
        ORDER BY updated_at LIMIT $2
    )
    RETURNING 1
)
SELECT count(*) FROM gone

-- name: only_bitmaps
-- Keeps the planner from walking whole tables or indexes for the rest of the transaction.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_indexscan', 'off', true)

-- name: delete_receipts
-- Deletes some receipts whose window has passed; returns how many.
WITH gone AS (
    -- Compared again, because the message may come once more until its receipt is locked.
    DELETE FROM receipts WHERE expires_at <= $1 AND ctid = ANY (ARRAY(
        SELECT ctid FROM receipts WHERE expires_at <= $1 LIMIT $2
    ))
    RETURNING 1
)
SELECT count(*) FROM gone

-- name: abandoned
-- Paused tasks of one agent that have waited too long or grown too old. None of them paused after $2.
SELECT id, tenant, owner, agent FROM tasks
WHERE agent = $1 AND state IN ('TASK_STATE_INPUT_REQUIRED', 'TASK_STATE_AUTH_REQUIRED') AND due_at IS NULL
    AND status_at <= $2::bigint AND (status_at <= $3::bigint OR created_at <= $4::bigint)
LIMIT $5::bigint

-- name: unfinished
-- Tasks of one agent that were created long ago, in the queue or at work, and are not to be canceled already.
SELECT id, tenant, owner, agent FROM tasks
WHERE agent = $1 AND due_at IS NOT NULL AND created_at <= $2::bigint AND NOT cancel_requested
LIMIT $3::bigint

-- name: stored_bytes
-- How many bytes the events and snapshots of a scope's tasks have. Only their lengths are read.
SELECT coalesce(sum(length(events.data)), 0)::bigint
FROM tasks JOIN events ON events.task = tasks.no
WHERE tasks.scope = $1::bigint

-- name: stored_bytes_of_owners
-- The same for the tasks of several owners.
SELECT coalesce(sum(length(events.data)), 0)::bigint
FROM tasks JOIN events ON events.task = tasks.no
WHERE {reached}

-- name: count_live_of_owners
-- How many tasks of several owners are in the queue, at work or paused; only live ones are in these two indexes.
SELECT (SELECT count(*) FROM tasks WHERE tasks.due_at IS NOT NULL AND {reached}) + (
    SELECT count(*) FROM tasks
    WHERE tasks.state IN ('TASK_STATE_INPUT_REQUIRED', 'TASK_STATE_AUTH_REQUIRED') AND tasks.due_at IS NULL AND {reached}
)

-- name: overgrown
-- Of the next tasks after an id: the last one, and those that hold more events than are to be kept.
SELECT max(id), array_agg(id ORDER BY id) FILTER (WHERE length > $1)
FROM (SELECT id, version - trimmed AS length FROM tasks WHERE id > $2 ORDER BY id LIMIT $3) AS next

-- name: overgrown_long
-- The same when that is many events: these tasks have an index of their own.
SELECT id FROM tasks WHERE is_long AND version - trimmed > $1 ORDER BY id

-- name: save_snapshot
-- Replaces the snapshot of one task.
INSERT INTO events (task, version, kind, data, at) VALUES ($1, 0, 'snapshot', $2, 0)
ON CONFLICT (task, version) DO UPDATE SET data = excluded.data

-- name: trim
-- Notes how far a log is trimmed, and how far its snapshot reaches.
UPDATE tasks SET trimmed = $2, folded = $3, is_long = version - $2 > 1000 WHERE id = $1

-- name: watch
-- Notes that a process has readers of these tasks; returns their versions.
WITH watched AS (
    SELECT id FROM tasks WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE
)
UPDATE tasks SET watcher = CASE WHEN watcher IN ('', $2) THEN $2 ELSE '*' END
FROM watched WHERE tasks.id = watched.id
RETURNING tasks.id, tasks.version

-- name: versions
-- The versions of watched tasks.
SELECT id, version FROM tasks WHERE id = ANY($1::text[])

-- name: server_time
-- The server's time in milliseconds since 1970.
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- name: has_work
-- Whether any task is due or to be canceled; only live ones are in the partial indexes.
SELECT EXISTS (SELECT 1 FROM tasks WHERE due_at IS NOT NULL AND due_at <= $1)
    OR EXISTS (SELECT 1 FROM tasks WHERE cancel_requested AND due_at IS NOT NULL)

-- name: check
-- Whether the tables cannot be written to; fails when they cannot be read.
SELECT current_setting('transaction_read_only')::boolean FROM schema_versions LIMIT 1

-- name: probe
-- Stores an event of a task that no sequence gives out; the transaction is rolled back.
INSERT INTO events (task, version, kind, data, at) VALUES (-pg_backend_pid(), 0, 'probe', '', 0)

-- name: note_session
-- Leaves a note that only this connection can see.
SELECT set_config('errands.session', $1, false)

-- name: session_note
-- That note; another one, or none, on a connection that others use, too.
SELECT current_setting('errands.session', true)

-- name: sweeper
-- Whether this connection may sweep now; one replica at a time may.
SELECT pg_try_advisory_lock(hashtext('errands sweep ' || current_schema()), 1)

-- name: begin_sweep
-- Notes that retention is applied now; true unless it was a moment ago. A time far in the future is a wrong clock's.
INSERT INTO sweeps (one, at) VALUES (true, $1)
ON CONFLICT (one) DO UPDATE SET at = excluded.at WHERE abs(excluded.at - sweeps.at) >= $2
RETURNING true

-- name: swept
-- Lets another replica sweep.
SELECT pg_advisory_unlock(hashtext('errands sweep ' || current_schema()), 1)

-- name: schema_version
-- The schema's version, and the oldest code that may use it.
SELECT version, oldest FROM schema_versions ORDER BY version DESC LIMIT 1

-- name: schema_exists
-- Whether there is a schema, whether it has the tables of errands, and whether it has tables at all.
SELECT
    EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1),
    EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = $1 AND tablename = 'schema_versions'),
    EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = $1)

-- name: schema_lock
-- Lets one process at a time change the schema; held until the transaction ends. A process that does not get the lock
-- must not wait for it in a transaction, because an index that is being built would wait for that transaction.
SELECT pg_try_advisory_xact_lock(hashtext('errands schema ' || $1::text), 2)

-- name: schema_lock_long
-- The same beyond transactions: held until the connection ends.
SELECT pg_try_advisory_lock(hashtext('errands schema ' || $1::text), 2)

-- name: schema_patience
-- Lifts the server's time limits for an upgrade, in this transaction or on this connection. Not every release of
-- PostgreSQL has all of them.
SELECT set_config(name, '0', $1) FROM pg_settings
WHERE name IN ('statement_timeout', 'transaction_timeout', 'idle_session_timeout')

-- name: schema_short_waits
-- While an upgrade waits for an exclusive lock, everybody else waits behind it: rather give up soon and try again.
SET LOCAL lock_timeout TO '1s'; SET LOCAL idle_in_transaction_session_timeout TO '1min'

-- name: schema_long_waits
-- Lets an index wait for the transactions that began before it, as it must; others do not wait for the index.
SET lock_timeout TO 0

-- name: index_is_valid
-- Whether an index is complete: false when its building was interrupted, no row when there is no such index.
SELECT indisvalid AND indisready FROM pg_index WHERE indexrelid = to_regclass($1)

-- name: schema_pause
-- Holds replicas up until the upgrade is done. Taken before any other lock, so that a replica and the upgrade cannot wait
-- for each other.
LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE

-- name: schema_applied
-- Notes that a migration was applied.
INSERT INTO schema_versions (version, oldest) VALUES ($1, $2)

-- name: upsert_push
-- Adds a push config. One that replaces another continues where that was, and is tried now; its holder loses its lease.
INSERT INTO pushes (task_id, id, agent, host, config, delivered, due_at)
VALUES ($1, $2, $3, $4, $5, $6::integer, $8::bigint)
ON CONFLICT (task_id, id) DO UPDATE SET
    host = excluded.host, config = excluded.config, claim = pushes.claim + 1, due_at = $7::bigint,
    attempts = 0, failed_at = NULL, error = '', dead = false

-- name: drop_push
-- Removes a push config.
DELETE FROM pushes WHERE task_id = $1 AND id = $2

-- name: fill_outbox
-- Makes the entries of some tasks due that wait for the next event.
UPDATE pushes SET due_at = new.at FROM unnest($1::text[], $2::bigint[]) AS new (task_id, at)
WHERE pushes.task_id = new.task_id AND pushes.due_at IS NULL AND NOT pushes.dead

-- name: push_configs
-- The push configs of a task, one row in any case if there is such a task.
SELECT (SELECT array_agg(config ORDER BY pushes.id) FROM pushes WHERE pushes.task_id = tasks.id)
FROM tasks WHERE id = $1 AND tenant = $2 AND owner = $3 AND agent = $4

-- name: due_hosts
-- The next hosts of due entries.
SELECT DISTINCT host FROM pushes
WHERE agent = $1 AND host > $2 AND due_at IS NOT NULL AND due_at <= $3 ORDER BY host LIMIT $4

-- fragment: entry
-- An entry of the outbox, in the order of `queries.read_entry`.
tasks.tenant, tasks.owner, tasks.agent, pushes.config, pushes.task_id, pushes.delivered, pushes.due_at, pushes.claim,
pushes.attempts, pushes.failed_at, pushes.error, pushes.dead

-- name: lease_entries
-- Leases the longest due entries of one host, without those that another process is leasing; the raised claim is the fence
-- against the former holder.
WITH due AS (
    SELECT task_id, id FROM pushes WHERE agent = $1 AND host = $2 AND due_at IS NOT NULL AND due_at <= $3
    ORDER BY due_at LIMIT $4::bigint FOR UPDATE SKIP LOCKED
), leased AS (
    UPDATE pushes SET claim = claim + 1, due_at = $5::bigint FROM due
    WHERE pushes.task_id = due.task_id AND pushes.id = due.id
    RETURNING pushes.*
)
SELECT {entry} FROM leased AS pushes JOIN tasks ON tasks.id = pushes.task_id

-- name: lock_versions
-- Locks tasks whose entries are settled: an event that is committed at the same moment is seen either here or there.
SELECT id, version FROM tasks WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE

-- name: settle_entry
-- Notes what came of a lease, if it was not taken over.
UPDATE pushes SET delivered = $4::integer, due_at = $5::bigint, attempts = $6::integer, failed_at = $7::bigint,
    error = $8::text, dead = $9::boolean
WHERE task_id = $1 AND id = $2 AND claim = $3::bigint
RETURNING true

-- name: some_entries
-- The next entries of any agent or one.
SELECT {entry}, pushes.id FROM pushes JOIN tasks ON tasks.id = pushes.task_id
WHERE (pushes.task_id, pushes.id) > ($1::text, $2::text) AND ($3::text IS NULL OR pushes.agent = $3)
ORDER BY pushes.task_id, pushes.id LIMIT $4::bigint

-- name: outbox_backlog
-- The time since which an agent's oldest entry has been due or leased, and how many are dead. Reads some of each.
SELECT
    (SELECT min(due_at) FROM (
        SELECT due_at FROM pushes WHERE agent = $1::text AND due_at IS NOT NULL LIMIT $2::bigint
    ) AS due),
    (SELECT count(*) FROM (SELECT 1 FROM pushes WHERE agent = $1::text AND dead LIMIT $2::bigint) AS dead)

-- name: retry_entry
-- Makes an entry due and forgets its failures.
UPDATE pushes SET due_at = $3::bigint, claim = claim + 1, attempts = 0, failed_at = NULL, error = '', dead = false
WHERE task_id = $1 AND id = $2 RETURNING true

-- name: note_access
-- Appends to the access log.
INSERT INTO accesses (at, id, data) VALUES ($1::bigint, $2::text, $3::bytea) ON CONFLICT DO NOTHING

-- name: some_accesses
-- The next entries of the access log.
SELECT at, id, data FROM accesses WHERE (at, id) > ($1::bigint, $2::text) ORDER BY at, id LIMIT $3::bigint

-- name: delete_accesses
-- Deletes some old entries of the access log; returns how many.
WITH gone AS (
    DELETE FROM accesses WHERE (at, id) IN (
        SELECT at, id FROM accesses WHERE at <= $1::bigint ORDER BY at, id LIMIT $2::bigint
    )
    RETURNING 1
)
SELECT count(*) FROM gone

-- name: report
-- Replaces the report of a process, and deletes those of processes that have been silent since a moment.
WITH gone AS (
    DELETE FROM processes WHERE at <= $4::bigint AND id <> $1::text
)
INSERT INTO processes (id, at, data) VALUES ($1::text, $2::bigint, $3::bytea)
ON CONFLICT (id) DO UPDATE SET at = excluded.at, data = excluded.data

-- name: reports
-- The reports since a moment; there are few rows.
SELECT data FROM processes WHERE at > $1::bigint

-- name: delete_report
-- Deletes the report of one process.
DELETE FROM processes WHERE id = $1::text
