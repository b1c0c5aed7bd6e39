-- Every statement of the engine. `-- name:` begins one, the sentence below it says what it is for.
-- `{record}` stands for the fragment of that name. Tables are found by the connection's search path.

-- fragment: record
-- A task's row, in the order of `records.read_record`.
tasks.id, tasks.no, tasks.tenant, tasks.owner, tasks.agent, tasks.context_id, tasks.folded, tasks.trimmed,
tasks.watcher, tasks.version, tasks.state, tasks.attempt, tasks.attempt_base, tasks.worker, tasks.due_at, tasks.unread,
tasks.cancel_requested, tasks.direct, tasks.created_at, tasks.updated_at, tasks.status_at, tasks.asks, tasks.given_back

-- name: lock
-- What a batch of changes is checked against; in the order of ids, so that two batches never wait for each other.
SELECT {record} FROM tasks WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE

-- name: known_receipts
-- Which of a batch's receipts are known, by which tasks, since when.
SELECT key, task_id, at FROM receipts
WHERE key = ANY($1::bytea[]) AND EXISTS (SELECT 1 FROM tasks WHERE tasks.id = receipts.task_id)

-- name: numbers
-- A block of numbers for new tasks.
SELECT nextval('task_numbers') FROM generate_series(1, $1::integer)

-- name: store
-- Writes a whole batch and says how many rows of each kind it has written: fewer than were passed means that
-- somebody else was faster. It leaves the batch's number behind, by which its fate can be learned later.
WITH stored_tasks AS (
    INSERT INTO tasks (
        id, no, scope, tenant, owner, agent, context_id, version, state, attempt, attempt_base,
        given_back, worker, due_at, unread, cancel_requested, direct, created_at, updated_at, status_at, folded, trimmed,
        watcher, asks
    )
    SELECT * FROM unnest(
        $1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::integer[],
        $9::text[], $10::integer[], $11::integer[], $12::integer[], $13::text[], $14::bigint[], $15::integer[],
        $16::boolean[], $17::boolean[], $18::bigint[], $19::bigint[], $20::bigint[], $21::integer[], $22::integer[],
        $23::text[], $24::text[]
    )
    ON CONFLICT (id) DO UPDATE SET
        version = excluded.version, state = excluded.state, attempt = excluded.attempt,
        attempt_base = excluded.attempt_base, given_back = excluded.given_back,
        worker = excluded.worker, due_at = excluded.due_at,
        unread = excluded.unread, cancel_requested = excluded.cancel_requested, direct = excluded.direct,
        updated_at = excluded.updated_at, status_at = excluded.status_at, folded = excluded.folded,
        watcher = excluded.watcher, asks = excluded.asks
    WHERE tasks.no = excluded.no AND tasks.version <= excluded.version AND tasks.attempt <= excluded.attempt
    RETURNING 1
), stored_events AS (
    INSERT INTO events (task, version, kind, data)
    SELECT * FROM unnest($25::bigint[], $26::integer[], $27::text[], $28::bytea[])
    ON CONFLICT (task, version) DO UPDATE SET data = excluded.data WHERE excluded.version = 0
    RETURNING 1
), stored_receipts AS (
    INSERT INTO receipts (key, task_id, at, expires_at)
    SELECT * FROM unnest($29::bytea[], $30::text[], $31::bigint[], $32::bigint[])
    ON CONFLICT (key) DO UPDATE SET task_id = excluded.task_id, at = excluded.at, expires_at = excluded.expires_at
    -- A receipt expires as long after its change as its window began before it.
    WHERE receipts.at < 2 * excluded.at - excluded.expires_at
        OR NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = receipts.task_id)
    RETURNING 1
), stored_contexts AS (
    INSERT INTO contexts (tenant, owner, agent, context_id, value, updated_at)
    SELECT * FROM unnest($33::text[], $34::text[], $35::text[], $36::text[], $37::bytea[], $38::bigint[])
    ON CONFLICT (tenant, owner, agent, context_id)
    DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at
), stored_tallies AS (
    INSERT INTO tallies (scope, state, shard, tasks)
    SELECT scope, state, $41::integer, difference
    FROM unnest($39::bigint[], $40::text[], $42::bigint[]) AS moved (scope, state, difference)
    ON CONFLICT (scope, state, shard) DO UPDATE SET tasks = tallies.tasks + excluded.tasks
), stored_batch AS (
    INSERT INTO writers (process, lane, batch) VALUES ($45::text, $46::integer, $47::bigint)
    ON CONFLICT (process, lane) DO UPDATE SET batch = excluded.batch, at = now()
)
SELECT
    (SELECT count(*) FROM stored_tasks),
    (SELECT count(*) FROM stored_events),
    (SELECT count(*) FROM stored_receipts),
    (SELECT count(pg_notify($43::text, payload)) FROM unnest($44::text[]) AS payload)

-- name: begin_writing
-- Makes the row of a connection that is going to write, so that whoever asks for it waits for what is under way.
INSERT INTO writers (process, lane, batch) VALUES ($1, $2, 0) ON CONFLICT (process, lane) DO NOTHING

-- name: note_batch
-- Leaves a batch's number behind, when this transaction has written something.
INSERT INTO writers (process, lane, batch)
SELECT $1::text, $2::integer, $3::bigint WHERE pg_current_xact_id_if_assigned() IS NOT NULL
ON CONFLICT (process, lane) DO UPDATE SET batch = excluded.batch, at = now()
RETURNING batch

-- name: last_batch
-- What a connection that broke has written last; waits until the server has decided that.
SELECT batch FROM writers WHERE process = $1 AND lane = $2 FOR UPDATE

-- name: end_writing
-- Removes the row of a connection that is closed.
DELETE FROM writers WHERE process = $1 AND lane = $2

-- name: forget_writers
-- Removes the rows of processes that died long ago.
DELETE FROM writers WHERE at < now() - interval '30 days'

-- fragment: snapshot_and_tail
-- Of a task's log. The second parameter is false for a tail without artifacts.
FROM (
    SELECT version, kind, data FROM events WHERE events.task = tasks.no AND events.version = 0
    UNION ALL
    SELECT version, kind, data FROM (
        SELECT version, kind, data FROM events
        WHERE events.task = tasks.no AND events.version > tasks.folded AND ($2::boolean OR kind <> 'artifact')
            AND kind <> 'record'
        ORDER BY version
    ) AS tail
) AS content

-- fragment: content
-- Snapshot and tail as three arrays in one row.
CROSS JOIN LATERAL (
    SELECT array_agg(version) AS versions, array_agg(kind) AS kinds, array_agg(data) AS data {snapshot_and_tail}
) AS log

-- name: load
-- One task in one consistent look: its row, its snapshot and the tail of its log.
SELECT {record}, log.versions, log.kinds, log.data FROM tasks {content} WHERE tasks.id = $1

-- name: contents
-- The same for several tasks.
SELECT {record}, log.versions, log.kinds, log.data FROM tasks {content} WHERE tasks.id = ANY($1::text[])

-- name: contents_within
-- The same for the first of several tasks, in their order, each with its number in it: as many as have no more than so
-- many bytes, and one in any case. Of the others only the lengths are looked at.
SELECT {record}, log.versions, log.kinds, log.data, tasks.place
FROM (
    SELECT tasks.*, wanted.place, row_number() OVER so_far AS rank, sum(size.bytes) OVER so_far AS bytes
    FROM unnest($1::text[]) WITH ORDINALITY AS wanted (id, place)
    JOIN tasks ON tasks.id = wanted.id
    CROSS JOIN LATERAL (SELECT coalesce(sum(octet_length(data)), 0) AS bytes {snapshot_and_tail}) AS size
    WINDOW so_far AS (ORDER BY wanted.place)
) AS tasks {content}
WHERE tasks.bytes <= $3::bigint OR tasks.rank = 1
ORDER BY tasks.place

-- name: read
-- A slice of a log in one consistent look, as many events as begin within $4 bytes, and where its task stands.
SELECT {record}, log.versions, log.kinds, log.data
FROM tasks
CROSS JOIN LATERAL (
    SELECT array_agg(version) AS versions, array_agg(kind) AS kinds, array_agg(data) AS data
    FROM (
        SELECT version, kind, data, sum(length(data)) OVER (ORDER BY version) - length(data) AS begins
        FROM (
            SELECT version, kind, data FROM events
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
-- The records of a task, also those of the part that is trimmed.
SELECT {record}, log.versions, log.kinds, log.data
FROM tasks
CROSS JOIN LATERAL (
    SELECT array_agg(version ORDER BY version) AS versions, array_agg(kind) AS kinds,
        array_agg(data ORDER BY version) AS data
    FROM events WHERE events.task = tasks.no AND events.kind = 'record'
) AS log
WHERE tasks.id = $1

-- fragment: of_scope
-- The tasks of a scope in one of some states; each state is one run of the index `tasks_listed`.
FROM tasks
WHERE tasks.scope = $1::bigint AND tasks.state = states.state AND tasks.status_at >= $3::bigint
    AND tasks.tenant = $4::text AND tasks.owner = $5::text AND tasks.agent = $6::text

-- fragment: in_order
-- The first phase of a listing: on from the last task, never past the moment the listing began.
AND tasks.status_at <= $7::bigint AND tasks.status_at <= $8::bigint AND (tasks.status_at < $8::bigint OR tasks.id > $9::text)
ORDER BY tasks.status_at DESC, tasks.id LIMIT $10::bigint

-- fragment: since_changed
-- The second phase of a listing: what has left the order since the listing began. OFFSET has it looked for by when it
-- changed: PostgreSQL would else walk all tasks in the order of their ids, because that is the order of the page.
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
-- As the tallies do, it goes by the hash alone: then the index `tasks_listed` has all that is needed.
SELECT coalesce(sum(found.tasks), 0)::bigint
FROM unnest($2::text[]) AS states (state)
CROSS JOIN LATERAL (
    SELECT count(*) AS tasks FROM tasks
    WHERE tasks.scope = $1::bigint AND tasks.state = states.state AND tasks.status_at >= $3::bigint
) AS found

-- name: tally
-- How many tasks of the scope there are, without looking at them.
SELECT coalesce(sum(tasks), 0)::bigint FROM tallies WHERE scope = $1::bigint AND state = ANY($2::text[])

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
-- The tasks that wait for one user's answer; the index tasks_asking lists them and no other.
SELECT {record}, log.versions, log.kinds, log.data
FROM (
    SELECT * FROM tasks
    WHERE asks <> '' AND ($1::text IS NULL OR id = $1) AND ($3::text IS NULL OR tenant = $3)
        AND ($4::text IS NULL OR agent = $4) AND ($5::text[] IS NULL OR asks = ANY($5))
    ORDER BY status_at, id LIMIT $6::bigint
) AS tasks {content}
ORDER BY tasks.status_at, tasks.id

-- name: some_tasks
-- The next tasks after an id, whosever they are.
SELECT {record}, log.versions, log.kinds, log.data
FROM (SELECT * FROM tasks WHERE id > $1 ORDER BY id LIMIT $3::bigint) AS tasks {content}
ORDER BY tasks.id

-- name: load_context
-- What was last saved for a conversation.
SELECT value FROM contexts WHERE tenant = $1 AND owner = $2 AND agent = $3 AND context_id = $4

-- name: due
-- The tasks of one agent that may be claimed, the longest due first; those that another claimer is taking are left out.
SELECT id, due_at FROM tasks WHERE agent = $1 AND due_at <= $2 ORDER BY due_at, id LIMIT $3 FOR UPDATE SKIP LOCKED

-- name: lease
-- Gives tasks to a worker; the raised attempt is what refuses the former holder.
UPDATE tasks SET attempt = attempt + 1, worker = $2, due_at = $3 WHERE id = ANY($1::text[])

-- name: extend
-- Extends those of a worker's leases that it still holds; tells which, and which are wanted canceled.
WITH held AS (
    SELECT id FROM tasks WHERE id = ANY($1::text[]) AND worker = $3 ORDER BY id FOR UPDATE
)
UPDATE tasks SET due_at = $4
FROM held JOIN unnest($1::text[], $2::integer[]) AS wanted (id, attempt) USING (id)
WHERE tasks.id = held.id AND tasks.attempt = wanted.attempt
RETURNING tasks.id, tasks.attempt, tasks.cancel_requested

-- name: longest_due
-- Since when the longest due task of some agents is due; NULL when none is.
SELECT min(first.due_at) FROM unnest($1::text[]) AS agents (agent), LATERAL (
    SELECT due_at FROM tasks WHERE tasks.agent = agents.agent AND due_at <= $2 ORDER BY due_at LIMIT 1
) AS first

-- name: wanted_canceled
-- The tasks a worker holds that somebody wants canceled.
SELECT id FROM tasks WHERE worker = $1 AND cancel_requested AND due_at IS NOT NULL

-- name: running
-- The tasks that somebody holds; among the live ones, which the index tasks_due lists.
SELECT {record} FROM tasks WHERE due_at IS NOT NULL AND due_at > $1 AND worker <> '' ORDER BY created_at, id

-- name: forget_tasks
-- Removes ended tasks, and counts them out. What a log has that is longer than the bound is left for later.
WITH gone AS (
    DELETE FROM tasks WHERE id = ANY($1::text[]) RETURNING no, version, scope, state
), whole AS (
    SELECT no FROM gone WHERE version <= $2::integer
), gone_events AS (
    DELETE FROM events WHERE task IN (SELECT no FROM whole)
), left_over AS (
    INSERT INTO remains (task, version) SELECT no, version FROM gone WHERE version > $2::integer
), gone_tallies AS (
    INSERT INTO tallies (scope, state, shard, tasks)
    SELECT scope, state, 0, -count(*) FROM gone GROUP BY scope, state ORDER BY scope, state
    ON CONFLICT (scope, state, shard) DO UPDATE SET tasks = tallies.tasks + excluded.tasks
)
SELECT count(*) FROM gone

-- name: some_remains
-- A deleted task that has left something, and up to which version, unless somebody else is at it.
SELECT task, version FROM remains ORDER BY task LIMIT 1 FOR UPDATE SKIP LOCKED

-- name: clear_events
-- Removes the events of one task between two versions, the second one included.
DELETE FROM events WHERE task = $1 AND version > $2::integer AND version <= $3::integer

-- name: trim_events
-- The same for what is cut off a log that goes on: records stay.
DELETE FROM events WHERE task = $1 AND version > $2::integer AND version <= $3::integer AND kind <> 'record'

-- name: note_remains
-- Notes up to which version a deleted task has still left something.
UPDATE remains SET version = $2 WHERE task = $1

-- name: forget_remains
-- Nothing is left of a deleted task.
DELETE FROM remains WHERE task = $1

-- fragment: ended
-- What retention may delete, word for word as in the index tasks_ended.
state IN ('TASK_STATE_COMPLETED', 'TASK_STATE_FAILED', 'TASK_STATE_CANCELED', 'TASK_STATE_REJECTED')

-- name: ended_before
-- Tasks that ended in one state and have not changed since a moment, the oldest first, and how long their logs are;
-- those that somebody is writing to are left out.
SELECT id, version FROM tasks WHERE {ended} AND state = $1 AND updated_at <= $2
ORDER BY updated_at, id LIMIT $3 FOR UPDATE SKIP LOCKED

-- name: longest_ended
-- The ended tasks that have not changed for the longest time: the oldest of each state, put together.
SELECT id, version FROM tasks WHERE id IN (
    SELECT oldest.id FROM unnest(
        ARRAY['TASK_STATE_COMPLETED', 'TASK_STATE_FAILED', 'TASK_STATE_CANCELED', 'TASK_STATE_REJECTED']
    ) AS states (state), LATERAL (
        SELECT id, updated_at FROM tasks WHERE {ended} AND state = states.state ORDER BY updated_at, id LIMIT $1
    ) AS oldest
    ORDER BY oldest.updated_at, oldest.id LIMIT $1
) FOR UPDATE SKIP LOCKED

-- name: count_ended
-- How many ended tasks there are.
SELECT coalesce(sum(tasks), 0)::bigint FROM tallies WHERE {ended}

-- name: forget_contexts
-- Removes some of what agents have not touched since a moment, in conversations without a live task; says how many.
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

-- name: forget_expired_receipts
-- Removes some receipts whose window has passed, and says how many.
WITH gone AS (
    -- Asked again: the message may have come once more by the time that its receipt is locked.
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

-- name: overgrown
-- Of the next tasks after an id: the last of them, and those that hold more events than are to be kept.
SELECT max(id), array_agg(id ORDER BY id) FILTER (WHERE length > $1)
FROM (SELECT id, version - trimmed AS length FROM tasks WHERE id > $2 ORDER BY id LIMIT $3) AS next

-- name: overgrown_long
-- The same when that is many: their own index knows them.
SELECT id FROM tasks WHERE version - trimmed > 1000 AND version - trimmed > $1 ORDER BY id

-- name: save_snapshot
-- Replaces the snapshot of one task.
INSERT INTO events (task, version, kind, data) VALUES ($1, 0, 'snapshot', $2)
ON CONFLICT (task, version) DO UPDATE SET data = excluded.data

-- name: trim
-- Marks how far a log has been cut off, and that its snapshot reaches beyond that.
UPDATE tasks SET trimmed = $2, folded = $3 WHERE id = $1

-- name: watch
-- Notes that a process has readers of these tasks, and says where they stand.
WITH watched AS (
    SELECT id FROM tasks WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE
)
UPDATE tasks SET watcher = CASE WHEN watcher IN ('', $2) THEN $2 ELSE '*' END
FROM watched WHERE tasks.id = watched.id
RETURNING tasks.id, tasks.version

-- name: versions
-- Where watched tasks stand.
SELECT id, version FROM tasks WHERE id = ANY($1::text[])

-- name: server_time
-- Milliseconds since 1970, as the server has it.
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- name: has_work
-- Whether any task is due or wanted canceled; among the live ones, which partial indexes list.
SELECT EXISTS (SELECT 1 FROM tasks WHERE due_at IS NOT NULL AND due_at <= $1)
    OR EXISTS (SELECT 1 FROM tasks WHERE cancel_requested AND due_at IS NOT NULL)

-- name: check
-- Fails when the tables cannot be read; says whether they cannot be written to.
SELECT current_setting('transaction_read_only')::boolean FROM schema_versions LIMIT 1

-- name: probe
-- Stores an event of a task that no sequence gives out; the transaction is rolled back.
INSERT INTO events (task, version, kind, data) VALUES (-pg_backend_pid(), 0, 'probe', '')

-- name: note_session
-- Leaves a note that only this connection can see.
SELECT set_config('errands.session', $1, false)

-- name: session_note
-- The note; another one, or none, on a connection that is not ours alone.
SELECT current_setting('errands.session', true)

-- name: sweeper
-- Whether this connection may sweep now: one replica at a time.
SELECT pg_try_advisory_lock(hashtext('errands sweep ' || current_schema()), 1)

-- name: begin_sweep
-- Notes that retention is applied now; true unless it was just before. A note from far in the future is a wrong clock's.
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
-- Whether there is a schema, whether it is ours, and whether somebody else's tables are in it.
SELECT
    EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1),
    EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = $1 AND tablename = 'schema_versions'),
    EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = $1)

-- name: schema_lock
-- Lets one process at a time change the schema; held until the transaction ends. Whoever does not get it must not wait
-- in a transaction: an index that is built meanwhile would wait for that one.
SELECT pg_try_advisory_xact_lock(hashtext('errands schema ' || $1::text), 2)

-- name: schema_lock_long
-- The same beyond transactions: held until the connection ends.
SELECT pg_try_advisory_lock(hashtext('errands schema ' || $1::text), 2)

-- name: schema_patience
-- Lets an upgrade take its time whatever the server allows others, in this transaction or on this connection. Not every
-- release of PostgreSQL has all of these bounds.
SELECT set_config(name, '0', $1) FROM pg_settings
WHERE name IN ('statement_timeout', 'transaction_timeout', 'idle_session_timeout')

-- name: schema_short_waits
-- While a lock is waited for that nobody else can have, everybody waits: rather try again. Whoever vanished lets go.
SET LOCAL lock_timeout TO '1s'; SET LOCAL idle_in_transaction_session_timeout TO '1min'

-- name: schema_long_waits
-- Lets an index wait for transactions that began before it, as it must; nobody waits for that.
SET lock_timeout TO 0

-- name: index_is_valid
-- Whether an index is complete; false when whoever built it was interrupted, no row when there is none.
SELECT indisvalid AND indisready FROM pg_index WHERE indexrelid = to_regclass($1)

-- name: schema_pause
-- Holds replicas up until the upgrade is done. Before anything else: one that is in the middle of something could
-- otherwise wait for what the upgrade has, and the upgrade for what that one has.
LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE

-- name: schema_applied
-- Notes that a migration was applied.
INSERT INTO schema_versions (version, oldest) VALUES ($1, $2)
