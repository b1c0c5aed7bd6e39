-- Every statement of the engine. `-- name:` begins one, the sentence below it says what it is for.
-- `{record}` stands for the fragment of that name; `/*each*/ x` is repeated, once for every row that is passed.
-- `<< 28` is the width of a version in `events.place`, as in migrations/0001_initial.sql.

-- fragment: record
-- A task's row as one JSON value: one column to fetch, decoded straight into `records.Record`.
json_array(
    tasks.no, tasks.id, tasks.tenant, tasks.owner, tasks.agent, tasks.context_id, tasks.folded, tasks.trimmed,
    json_object(
        'version', tasks.version, 'state', tasks.state, 'attempt', tasks.attempt,
        'attempt_base', tasks.attempt_base, 'given_back', tasks.given_back,
        'worker', tasks.worker, 'due_at', tasks.due_at,
        'unread', tasks.unread, 'cancel_requested', tasks.cancel_requested, 'direct', tasks.direct,
        'asks', tasks.asks,
        'created_at', tasks.created_at, 'updated_at', tasks.updated_at, 'status_at', tasks.status_at
    )
)

-- name: look
-- What a batch of changes is checked against: the rows of its tasks, and the highest number that belongs to one, or to
-- what a deleted one has left.
SELECT
    (SELECT json_group_array({record}) FROM tasks WHERE id IN (SELECT value FROM json_each(?))),
    max(ifnull((SELECT max(no) FROM tasks), 0), ifnull((SELECT max(task) FROM remains), 0))

-- name: known_receipts
-- Which of a batch's receipts are known, by which tasks, since when.
SELECT receipts.digest, receipts.at, tasks.id, tasks.tenant, tasks.owner, tasks.agent
FROM receipts JOIN tasks ON tasks.id = receipts.task_id
WHERE receipts.digest IN (/*each*/ ?)

-- name: insert_events
-- Appends to logs and replaces snapshots; an event that is there already is left alone, which the row count tells.
INSERT INTO events (place, kind, data) VALUES /*each*/ (?, ?, ?)
ON CONFLICT (place) DO UPDATE SET data = excluded.data WHERE excluded.kind = 'snapshot'

-- name: reserve_event
-- The same for one row whose data is so large that it is written into the row afterwards.
INSERT INTO events (place, kind, data) VALUES (?, ?, zeroblob(?))
ON CONFLICT (place) DO UPDATE SET data = excluded.data WHERE excluded.kind = 'snapshot'

-- name: upsert_tasks
-- Writes heads; the guards repeat what was checked before, and a row they hold back is missing in the row count.
INSERT INTO tasks (
    no, id, tenant, owner, agent, context_id, version, state, attempt, attempt_base, given_back, worker, due_at, unread,
    cancel_requested, direct, asks, created_at, updated_at, status_at, folded, trimmed
) VALUES /*each*/ (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (no) DO UPDATE SET
    version = excluded.version, state = excluded.state, attempt = excluded.attempt,
    attempt_base = excluded.attempt_base, given_back = excluded.given_back,
    worker = excluded.worker, due_at = excluded.due_at,
    unread = excluded.unread, cancel_requested = excluded.cancel_requested, direct = excluded.direct,
    asks = excluded.asks,
    updated_at = excluded.updated_at, status_at = excluded.status_at, folded = excluded.folded
WHERE tasks.id = excluded.id AND tasks.version <= excluded.version AND tasks.attempt <= excluded.attempt

-- name: upsert_receipts
-- Remembers messages; one that had expired and came again to the same task counts from now.
INSERT INTO receipts (digest, task_id, at, expires_at) VALUES /*each*/ (?, ?, ?, ?)
ON CONFLICT (digest, task_id) DO UPDATE SET at = excluded.at, expires_at = excluded.expires_at

-- name: record
-- One task's row, whoever asks.
SELECT {record} FROM tasks WHERE id = ?

-- fragment: packed
-- Up to 64 events in one row: their places, kinds and lengths as JSON, their data as one blob. Every row that is
-- fetched gives up the interpreter's lock and has to win it back, so a long log must not be a row per event.
events.place >> 6 AS pack,
json_group_array(json_array(events.place, events.kind, length(events.data))) AS labels,
CAST(group_concat(events.data, '') AS BLOB) AS data

-- name: load
-- One task in one consistent look: its row, its snapshot and the tail of its log.
SELECT 0 AS pack, {record} AS labels, NULL AS data
FROM tasks WHERE id = :id AND tenant = :tenant AND owner = :owner AND agent = :agent
UNION ALL
SELECT {packed}
FROM tasks JOIN events ON events.place = tasks.no << 28
WHERE tasks.id = :id AND tasks.tenant = :tenant AND tasks.owner = :owner AND tasks.agent = :agent
GROUP BY 1
UNION ALL
SELECT {packed}
FROM tasks JOIN events ON events.place > (tasks.no << 28) + tasks.folded AND events.place < (tasks.no + 1) << 28
WHERE tasks.id = :id AND tasks.tenant = :tenant AND tasks.owner = :owner AND tasks.agent = :agent
    AND events.kind <> 'record'
GROUP BY 1
ORDER BY 1

-- fragment: snapshots
-- The snapshots of several tasks.
FROM tasks JOIN events ON events.place = tasks.no << 28
WHERE tasks.no IN (SELECT value FROM json_each(:nos))

-- fragment: tails
-- The tails of several tasks, with or without artifacts.
FROM tasks JOIN events ON events.place > (tasks.no << 28) + tasks.folded AND events.place < (tasks.no + 1) << 28
WHERE tasks.no IN (SELECT value FROM json_each(:nos)) AND (:with_artifacts OR events.kind <> 'artifact')
    AND events.kind <> 'record'

-- name: contents
-- The snapshots and tails of several tasks.
SELECT {packed} {snapshots} GROUP BY 1
UNION ALL
SELECT {packed} {tails} GROUP BY 1
ORDER BY 1

-- name: sizes
-- How many bytes `contents` has of each task, as JSON; the contents themselves are not read for it.
SELECT json_group_object(no, bytes)
FROM (
    SELECT no, sum(bytes) AS bytes
    FROM (
        SELECT tasks.no, length(events.data) AS bytes {snapshots}
        UNION ALL
        SELECT tasks.no, length(events.data) AS bytes {tails}
    )
    GROUP BY no
)

-- name: read
-- A slice of a log in one consistent look: up to where it is trimmed, then the events, as many as begin within `:bytes`.
SELECT 0 AS pack, trimmed AS labels, NULL AS data
FROM tasks WHERE id = :id AND tenant = :tenant AND owner = :owner AND agent = :agent
UNION ALL
SELECT {packed}
FROM (
    SELECT log.place, log.kind, log.data
    FROM (
        SELECT sizes.place, sum(sizes.size) OVER (ORDER BY sizes.place) - sizes.size AS begins
        FROM (
            SELECT log.place, length(log.data) AS size
            FROM tasks JOIN events AS log
                ON log.place > (tasks.no << 28) + max(:after, tasks.trimmed) AND log.place < (tasks.no + 1) << 28
            WHERE tasks.id = :id AND tasks.tenant = :tenant AND tasks.owner = :owner AND tasks.agent = :agent
            ORDER BY log.place
            LIMIT :limit
        ) AS sizes
    ) AS places
    JOIN events AS log ON log.place = places.place
    WHERE places.begins < :bytes
    ORDER BY log.place
) AS events
GROUP BY 1
ORDER BY 1

-- name: scope_of
-- Whose task it is.
SELECT tenant, owner, agent FROM tasks WHERE id = ?

-- name: records
-- The records of a task, also those of the part that is trimmed.
SELECT 0 AS pack, NULL AS labels, NULL AS data
FROM tasks WHERE id = :id AND tenant = :tenant AND owner = :owner AND agent = :agent
UNION ALL
SELECT {packed}
FROM tasks JOIN events ON events.place > tasks.no << 28 AND events.place < (tasks.no + 1) << 28
WHERE tasks.id = :id AND tasks.tenant = :tenant AND tasks.owner = :owner AND tasks.agent = :agent
    AND events.kind = 'record'
GROUP BY 1
ORDER BY 1

-- fragment: of_scope
-- The tasks a listing without a context is about.
FROM tasks INDEXED BY tasks_listed
WHERE tenant = :tenant AND owner = :owner AND agent = :agent AND status_at >= :status_after AND (:state IS NULL OR state = :state)

-- fragment: of_context
-- The tasks a listing of one context is about.
FROM tasks INDEXED BY tasks_of_context
WHERE context_id = :context_id AND tenant = :tenant AND owner = :owner AND agent = :agent
    AND status_at >= :status_after AND (:state IS NULL OR state = :state)

-- fragment: in_order
-- The first phase of a listing: on from the last task, never past the moment the listing began.
AND status_at <= :as_of AND status_at <= :status_at AND (status_at < :status_at OR id > :id)
ORDER BY status_at DESC, id LIMIT :limit

-- fragment: since_changed
-- The second phase of a listing: what has left the order since the listing began.
AND status_at > :as_of AND created_at <= :as_of AND id > :id
ORDER BY id LIMIT :limit

-- name: list_scope_in_order
-- A page of the scope's tasks, first phase.
SELECT {record} {of_scope} {in_order}

-- name: list_scope_since_changed
-- A page of the scope's tasks, second phase.
SELECT {record} {of_scope} {since_changed}

-- name: count_scope
-- How many tasks of the scope match.
SELECT count(*) {of_scope}

-- name: list_context_in_order
-- A page of a context's tasks, first phase.
SELECT {record} {of_context} {in_order}

-- name: list_context_since_changed
-- A page of a context's tasks, second phase.
SELECT {record} {of_context} {since_changed}

-- name: count_context
-- How many tasks of the context match.
SELECT count(*) {of_context}

-- fragment: asked
-- The tasks that wait for one user's answer and that a query allows.
asks <> '' AND (:tenant IS NULL OR tenant = :tenant) AND (:agent IS NULL OR agent = :agent)
    AND (:users IS NULL OR asks IN (SELECT value FROM json_each(:users)))

-- name: asking
-- The tasks that wait for one user's answer; the index tasks_asking lists them and no other.
SELECT {record} FROM tasks INDEXED BY tasks_asking WHERE {asked} ORDER BY status_at, id LIMIT :limit

-- name: asking_by_id
-- The task of this id, if it waits for one user's answer.
SELECT {record} FROM tasks WHERE id = :id AND {asked} LIMIT :limit

-- name: abandoned
-- Paused tasks of one agent that have waited too long or grown too old. None of them paused after :newest.
SELECT id, tenant, owner, agent FROM tasks INDEXED BY tasks_paused
WHERE agent = :agent AND due_at IS NULL AND (state = 'TASK_STATE_INPUT_REQUIRED' OR state = 'TASK_STATE_AUTH_REQUIRED')
    AND status_at <= :newest AND (status_at <= :paused_by OR created_at <= :created_by)
LIMIT :limit

-- name: some_tasks
-- The next tasks after a number, whosever they are.
SELECT {record} FROM tasks WHERE no > ? ORDER BY no LIMIT ?

-- name: load_context
-- What was last saved for a conversation.
SELECT value FROM contexts WHERE tenant = ? AND owner = ? AND agent = ? AND context_id = ?

-- name: save_context
-- Keeps something for a conversation; the last writer wins.
INSERT INTO contexts (tenant, owner, agent, context_id, value, updated_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, owner, agent, context_id) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at

-- name: due
-- The tasks of one agent that may be claimed, the longest due first.
SELECT {record} FROM tasks WHERE agent = ? AND due_at <= ? ORDER BY due_at, id LIMIT ?

-- name: longest_due
-- Since when the longest due task of one agent is due; NULL when none is.
SELECT min(due_at) FROM tasks WHERE agent = ? AND due_at <= ?

-- name: wanted_canceled
-- The tasks a worker holds that somebody wants canceled.
SELECT id FROM tasks WHERE worker = ? AND cancel_requested = 1 AND due_at IS NOT NULL

-- name: running
-- The tasks that somebody holds; among the live ones, which the index tasks_due lists.
SELECT {record} FROM tasks INDEXED BY tasks_due WHERE due_at IS NOT NULL AND due_at > ? AND worker <> ''
ORDER BY created_at, id

-- name: forget_receipts
-- Removes some receipts whose window has passed.
DELETE FROM receipts WHERE (digest, task_id) IN (SELECT digest, task_id FROM receipts WHERE expires_at <= ? LIMIT ?)

-- name: lease
-- Gives tasks to a worker; the raised attempt is what refuses the former holder.
UPDATE tasks SET attempt = attempt + 1, worker = ?, due_at = ? WHERE no IN (SELECT value FROM json_each(?))

-- name: held
-- Which of some tasks a worker holds, by which attempt, and whether they are wanted canceled; one row for all.
SELECT json_group_array(json_array(no, id, attempt, cancel_requested))
FROM tasks WHERE id IN (SELECT value FROM json_each(?)) AND worker = ?

-- name: extend
-- Extends all leases of a worker at once.
UPDATE tasks SET due_at = ? WHERE no IN (SELECT value FROM json_each(?))

-- name: forget_events
-- Removes the logs and snapshots between two places.
DELETE FROM events WHERE place >= ? AND place < ?

-- name: trim_events
-- The same for what is cut off a log that goes on: records stay.
DELETE FROM events WHERE place >= ? AND place < ? AND kind <> 'record'

-- name: leave
-- Notes up to which version a task that is deleted leaves something.
INSERT INTO remains (task, version) VALUES (?, ?) ON CONFLICT (task) DO UPDATE SET version = excluded.version

-- name: some_remains
-- A deleted task that has left something, and up to which version.
SELECT task, version FROM remains LIMIT 1

-- name: forget_remains
-- Nothing is left of a deleted task.
DELETE FROM remains WHERE task = ?

-- name: last_place
-- Where a log ends, between the place of its snapshot and that of the next task's; NULL when nothing is left of it.
SELECT max(place) FROM events WHERE place >= ? AND place < ?

-- name: forget_task
-- Removes one task's row.
DELETE FROM tasks WHERE no = ?

-- fragment: ended
-- What retention may delete, word for word as in the index tasks_ended.
(state = 'TASK_STATE_COMPLETED' OR state = 'TASK_STATE_FAILED'
    OR state = 'TASK_STATE_CANCELED' OR state = 'TASK_STATE_REJECTED')

-- name: forget_contexts
-- Removes some of what agents have not touched since a moment, in conversations without a live task.
DELETE FROM contexts WHERE (tenant, owner, agent, context_id) IN (
    SELECT tenant, owner, agent, context_id FROM contexts
    WHERE updated_at <= ? AND NOT EXISTS (
        SELECT 1 FROM tasks INDEXED BY tasks_of_context
        WHERE tasks.context_id = contexts.context_id AND tasks.tenant = contexts.tenant
            AND tasks.owner = contexts.owner AND tasks.agent = contexts.agent AND NOT ({ended})
    )
    ORDER BY updated_at LIMIT ?
)

-- name: begin_sweep
-- Notes that retention is applied now, unless it was just before. A note from far in the future is a wrong clock's.
INSERT INTO sweeps (one, at) VALUES (1, ?)
ON CONFLICT (one) DO UPDATE SET at = excluded.at WHERE abs(excluded.at - sweeps.at) >= ?

-- name: ended_before
-- Tasks that ended in one state and have not changed since a moment, the oldest first.
SELECT no FROM tasks WHERE {ended} AND state = ? AND updated_at <= ?
ORDER BY updated_at, no LIMIT ?

-- fragment: in_turn
-- The order in which the index tasks_ended lists the tasks of one state.
ORDER BY updated_at, no LIMIT :limit

-- name: longest_ended
-- The ended tasks that have not changed for the longest time: the oldest of each state, put together.
SELECT no FROM (
    SELECT * FROM (
        SELECT no, updated_at FROM tasks
        WHERE {ended} AND state = 'TASK_STATE_COMPLETED' {in_turn}
    )
    UNION ALL SELECT * FROM (
        SELECT no, updated_at FROM tasks WHERE {ended} AND state = 'TASK_STATE_FAILED' {in_turn}
    )
    UNION ALL SELECT * FROM (
        SELECT no, updated_at FROM tasks WHERE {ended} AND state = 'TASK_STATE_CANCELED' {in_turn}
    )
    UNION ALL SELECT * FROM (
        SELECT no, updated_at FROM tasks WHERE {ended} AND state = 'TASK_STATE_REJECTED' {in_turn}
    )
) {in_turn}

-- name: count_ended
-- How many ended tasks there are.
SELECT count(*) FROM tasks WHERE {ended}

-- name: overgrown
-- Tasks that hold more events than are to be kept.
SELECT id FROM tasks WHERE version - trimmed > ? ORDER BY no

-- name: trim
-- Marks how far a log has been cut off, and that its snapshot reaches beyond that.
UPDATE tasks SET trimmed = ?, folded = ? WHERE no = ?

-- name: versions
-- Where watched tasks stand, for readers that another process may have overtaken; one row for all.
SELECT json_group_object(id, version) FROM tasks WHERE id IN (SELECT value FROM json_each(?))

-- name: has_work
-- Whether any task is due or wanted canceled; among the live ones, which the index tasks_due lists.
SELECT EXISTS (
    SELECT 1 FROM tasks INDEXED BY tasks_due WHERE due_at IS NOT NULL AND (due_at <= ? OR cancel_requested)
)
