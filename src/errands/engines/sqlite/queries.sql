-- Every statement of the engine. `-- name:` begins one; the sentence below it says what it does.
-- `{record}` stands for the fragment of that name; `/*each*/ x` is repeated, once for every row that is passed.
-- `<< 28` is the width of a version in `events.place`, as in migrations/0007_initial.sql.

-- fragment: record
-- A task's row as one JSON value: one column to fetch, decoded straight into `errands.engines.commit.TaskRow`.
json_array(
    tasks.no, tasks.id, json_array(tasks.tenant, tasks.owner, tasks.agent), tasks.context_id, tasks.folded, tasks.trimmed,
    json_object(
        'version', tasks.version, 'state', tasks.state, 'attempt', tasks.attempt,
        'attempt_base', tasks.attempt_base, 'given_back', tasks.given_back,
        'worker', tasks.worker, 'due_at', tasks.due_at, 'claimed', tasks.claimed,
        'unread', tasks.unread, 'cancel_requested', tasks.cancel_requested, 'direct', tasks.direct,
        'asks', tasks.asks,
        'created_at', tasks.created_at, 'updated_at', tasks.updated_at, 'status_at', tasks.status_at,
        'pushes', json((SELECT json_group_array(pushes.id) FROM pushes WHERE pushes.task = tasks.no))
    )
)

-- name: look
-- What a batch of changes is judged against: the highest number that belongs to a task, or to the remains of a deleted
-- one; the rows of its tasks; and which of its receipts are known, by which tasks, since when.
SELECT
    max(ifnull((SELECT max(no) FROM tasks), 0), ifnull((SELECT max(task) FROM remains), 0)),
    (SELECT json_group_array({record}) FROM tasks WHERE id IN (SELECT value FROM json_each(?))),
    (
        SELECT json_group_array(
            json_array(hex(receipts.digest), receipts.at, tasks.id, json_array(tasks.tenant, tasks.owner, tasks.agent))
        )
        FROM receipts JOIN tasks ON tasks.id = receipts.task_id
        WHERE receipts.digest IN (/*each*/ ?)
    )

-- name: insert_events
-- Appends to logs and replaces snapshots; an event that exists already is left as it is, which the row count tells.
INSERT INTO events (place, kind, data, at, lease) VALUES /*each*/ (?, ?, ?, ?, ?)
ON CONFLICT (place) DO UPDATE SET data = excluded.data WHERE excluded.kind = 'snapshot'

-- name: reserve_event
-- The same for one row whose data is so large that it is written into the row afterwards.
INSERT INTO events (place, kind, data, at, lease) VALUES (?, ?, zeroblob(?), ?, ?)
ON CONFLICT (place) DO UPDATE SET data = excluded.data WHERE excluded.kind = 'snapshot'

-- name: upsert_tasks
-- Writes heads; the guards repeat what was judged before, and a row that they hold back is missing in the row count.
INSERT INTO tasks (
    no, id, tenant, owner, agent, context_id, version, state, attempt, attempt_base, given_back, worker, due_at, claimed,
    unread, cancel_requested, direct, asks, created_at, updated_at, status_at, folded, trimmed
) VALUES /*each*/ (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (no) DO UPDATE SET
    version = excluded.version, state = excluded.state, attempt = excluded.attempt,
    attempt_base = excluded.attempt_base, given_back = excluded.given_back,
    worker = excluded.worker, due_at = excluded.due_at, claimed = excluded.claimed,
    unread = excluded.unread, cancel_requested = excluded.cancel_requested, direct = excluded.direct,
    asks = excluded.asks,
    updated_at = excluded.updated_at, status_at = excluded.status_at, folded = excluded.folded
WHERE tasks.id = excluded.id AND tasks.version <= excluded.version AND tasks.attempt <= excluded.attempt

-- name: append_to_tasks
-- The same for changes that only append events: no index has these columns.
UPDATE tasks SET version = new.version, updated_at = new.updated_at
FROM (
    SELECT column1 AS no, column2 AS version, column3 AS updated_at FROM (VALUES /*each*/ (?, ?, ?))
) AS new
WHERE tasks.no = new.no AND tasks.version <= new.version

-- name: upsert_receipts
-- Remembers messages; one that had expired and came again to the same task counts from now on.
INSERT INTO receipts (digest, task_id, at, expires_at) VALUES /*each*/ (?, ?, ?, ?)
ON CONFLICT (digest, task_id) DO UPDATE SET at = excluded.at, expires_at = excluded.expires_at

-- name: record
-- One task's row, whatever its scope.
SELECT {record} FROM tasks WHERE id = ?

-- fragment: packed
-- Up to 64 events in one row: all but their data as JSON, their data as one blob. Every row that is fetched gives up the
-- interpreter's lock and has to win it back, so a long log must not be a row per event.
events.place >> 6 AS pack,
json_group_array(
    json_array(events.place, events.kind, length(events.data), events.at, events.lease)
) AS labels,
CAST(group_concat(events.data, '') AS BLOB) AS data

-- fragment: alone
-- One event as such a row: a large one is not copied on its way.
events.place >> 6 AS pack,
json_array(json_array(events.place, events.kind, length(events.data), events.at, events.lease)) AS labels,
CAST(events.data AS BLOB) AS data

-- fragment: snapshot_of_one
-- The snapshot of one task.
FROM tasks JOIN events ON events.place = tasks.no << 28
WHERE tasks.id = :id

-- fragment: tail_of_one
-- The tail of one task.
FROM tasks JOIN events ON events.place > (tasks.no << 28) + tasks.folded AND events.place < (tasks.no + 1) << 28
WHERE tasks.id = :id AND events.kind <> 'record'

-- name: load_head
-- One task without its content.
SELECT {record} FROM tasks WHERE id = ?

-- name: load
-- One task in one consistent view: its row with the bytes of its content; then, if they are `:most` or fewer, its snapshot
-- and the tail of its log. Of a larger task only the lengths are read.
WITH size (bytes) AS MATERIALIZED (
    SELECT coalesce((SELECT length(events.data) {snapshot_of_one}), 0)
        + coalesce((SELECT sum(length(events.data)) {tail_of_one}), 0)
)
SELECT 0 AS pack, {record} AS labels, (SELECT bytes FROM size) AS data
FROM tasks WHERE id = :id
UNION ALL
SELECT {alone} {snapshot_of_one} AND (SELECT bytes <= :most FROM size)
UNION ALL
SELECT {packed} {tail_of_one} AND (SELECT bytes <= :most FROM size)
GROUP BY 1

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
SELECT {alone} {snapshots}
UNION ALL
SELECT {packed} {tails} GROUP BY 1

-- name: sizes
-- How many bytes `contents` would return of each task, as JSON, without reading them.
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
-- A slice of a log in one consistent view: where its trimmed part ends, then as many events as begin within `:bytes`.
SELECT 0 AS pack, trimmed AS labels, NULL AS data
FROM tasks WHERE id = :id AND tenant = :tenant AND owner = :owner AND agent = :agent
UNION ALL
SELECT {packed}
FROM (
    SELECT log.place, log.kind, log.data, log.at, log.lease
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

-- name: records
-- The records of a task, those of the trimmed part included.
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
-- The tasks that a listing without a context is about.
FROM tasks INDEXED BY tasks_listed
WHERE tenant = :tenant AND owner = :owner AND agent = :agent AND status_at >= :status_after AND (:state IS NULL OR state = :state)

-- fragment: of_context
-- The tasks that a listing of one context is about.
FROM tasks INDEXED BY tasks_of_context
WHERE context_id = :context_id AND tenant = :tenant AND owner = :owner AND agent = :agent
    AND status_at >= :status_after AND (:state IS NULL OR state = :state)

-- fragment: reached
-- The tasks within the reach of a scope.
agent = :agent AND (:tenant IS NULL OR tenant = :tenant) AND (:owner IS NULL OR owner = :owner)

-- fragment: of_owners
-- The tasks that a listing of several owners is about.
FROM tasks WHERE {reached} AND (:context_id IS NULL OR context_id = :context_id)
    AND status_at >= :status_after AND (:state IS NULL OR state = :state)

-- fragment: in_order
-- The first phase of a listing: the tasks after the last one, none newer than the listing.
AND status_at <= :as_of AND status_at <= :status_at AND (status_at < :status_at OR id > :id)
ORDER BY status_at DESC, id LIMIT :limit

-- fragment: since_changed
-- The second phase of a listing: the tasks that have left the order since the listing began.
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

-- name: list_owners_in_order
-- A page of the tasks of several owners, first phase.
SELECT {record} {of_owners} {in_order}

-- name: list_owners_since_changed
-- A page of the tasks of several owners, second phase.
SELECT {record} {of_owners} {since_changed}

-- name: count_owners
-- How many tasks of several owners match.
SELECT count(*) {of_owners}

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
-- The tasks that wait for one user's answer and match a query.
asks <> '' AND (:tenant IS NULL OR tenant = :tenant) AND (:agent IS NULL OR agent = :agent)
    AND (:users IS NULL OR asks IN (SELECT value FROM json_each(:users)))

-- name: asking
-- The tasks that wait for one user's answer; only those are in the index tasks_asking.
SELECT {record} FROM tasks INDEXED BY tasks_asking WHERE {asked} ORDER BY status_at, id LIMIT :limit

-- name: asking_by_id
-- The task with this id, if it waits for one user's answer.
SELECT {record} FROM tasks WHERE id = :id AND {asked} LIMIT :limit

-- name: abandoned
-- Paused tasks of one agent that have waited too long or grown too old. None of them paused after :newest.
SELECT id, tenant, owner, agent FROM tasks INDEXED BY tasks_paused
WHERE agent = :agent AND due_at IS NULL AND (state = 'TASK_STATE_INPUT_REQUIRED' OR state = 'TASK_STATE_AUTH_REQUIRED')
    AND status_at <= :newest AND (status_at <= :paused_by OR created_at <= :created_by)
LIMIT :limit

-- name: unfinished
-- Tasks of one agent that were created long ago, in the queue or at work, and are not to be canceled already.
SELECT id, tenant, owner, agent FROM tasks INDEXED BY tasks_due
WHERE agent = :agent AND due_at IS NOT NULL AND created_at <= :unfinished_by AND NOT cancel_requested
LIMIT :limit

-- name: count_live
-- How many tasks of a scope are in the queue, at work or paused; only live ones are in these two indexes.
SELECT (
    SELECT count(*) FROM tasks INDEXED BY tasks_due
    WHERE due_at IS NOT NULL AND {reached}
) + (
    SELECT count(*) FROM tasks INDEXED BY tasks_paused
    WHERE due_at IS NULL AND (state = 'TASK_STATE_INPUT_REQUIRED' OR state = 'TASK_STATE_AUTH_REQUIRED') AND {reached}
)

-- name: stored_bytes
-- How many bytes the events and snapshots of a scope's tasks have. Only their lengths are read.
SELECT coalesce(sum(length(events.data)), 0)
FROM tasks INDEXED BY tasks_listed JOIN events ON events.place >= tasks.no << 28 AND events.place < (tasks.no + 1) << 28
WHERE tenant = :tenant AND owner = :owner AND agent = :agent

-- name: stored_bytes_of_owners
-- The same for the tasks of several owners. CROSS JOIN has SQLite look at the tasks first.
SELECT coalesce(sum(length(events.data)), 0)
FROM tasks CROSS JOIN events ON events.place >= tasks.no << 28 AND events.place < (tasks.no + 1) << 28
WHERE {reached}

-- name: some_tasks
-- The next tasks of any scope after a number.
SELECT {record} FROM tasks WHERE no > ? ORDER BY no LIMIT ?

-- name: load_context
-- The context that was last saved for a conversation.
SELECT value FROM contexts WHERE tenant = ? AND owner = ? AND agent = ? AND context_id = ?

-- name: save_context
-- Saves the context of a conversation; the last writer wins.
INSERT INTO contexts (tenant, owner, agent, context_id, value, updated_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, owner, agent, context_id) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at

-- name: due
-- The tasks of one agent that may be claimed, the longest due first.
SELECT {record} FROM tasks WHERE agent = ? AND due_at <= ? ORDER BY due_at, id LIMIT ?

-- name: longest_due
-- When the longest due task of one agent became due; NULL when none is due.
SELECT min(due_at) FROM tasks WHERE agent = ? AND due_at <= ?

-- name: wanted_canceled
-- The tasks that a worker holds and that are to be canceled.
SELECT id FROM tasks WHERE worker = ? AND cancel_requested = 1 AND due_at IS NOT NULL

-- name: running
-- The tasks that are leased now; only live ones are in the index tasks_due.
SELECT {record} FROM tasks INDEXED BY tasks_due WHERE due_at IS NOT NULL AND due_at > ? AND worker <> ''
ORDER BY created_at, id

-- name: delete_receipts
-- Deletes some receipts whose window has passed.
DELETE FROM receipts WHERE (digest, task_id) IN (SELECT digest, task_id FROM receipts WHERE expires_at <= ? LIMIT ?)

-- name: lease
-- Leases tasks to a worker; the raised attempt is the fence against the former holder.
UPDATE tasks
SET attempt = attempt + 1, claimed = CASE worker WHEN '' THEN 'ready' ELSE 'expired' END, worker = ?, due_at = ?
WHERE no IN (SELECT value FROM json_each(?))

-- name: held
-- Which of some tasks a worker holds, by which attempt, and whether they are to be canceled, as one row.
SELECT json_group_array(json_array(no, id, attempt, cancel_requested))
FROM tasks WHERE id IN (SELECT value FROM json_each(?)) AND worker = ?

-- name: extend
-- Extends all leases of a worker at once.
UPDATE tasks SET due_at = ? WHERE no IN (SELECT value FROM json_each(?))

-- name: delete_events
-- Deletes the events and snapshots between two places.
DELETE FROM events WHERE place >= ? AND place < ?

-- name: trim_events
-- The same for the beginning of a log that is kept: records stay.
DELETE FROM events WHERE place >= ? AND place < ? AND kind <> 'record'

-- name: note_remains
-- Notes up to which version events of a deleted task are left.
INSERT INTO remains (task, version) VALUES (?, ?) ON CONFLICT (task) DO UPDATE SET version = excluded.version

-- name: some_remains
-- A deleted task of which events are left, and up to which version.
SELECT task, version FROM remains LIMIT 1

-- name: delete_remains
-- Notes that no events of a deleted task are left.
DELETE FROM remains WHERE task = ?

-- name: last_place
-- Where a log ends, between the place of its snapshot and that of the next task's; NULL when it is empty.
SELECT max(place) FROM events WHERE place >= ? AND place < ?

-- name: delete_task
-- Deletes one task's row.
DELETE FROM tasks WHERE no = ?

-- fragment: ended
-- What retention may delete, word for word as in the index tasks_ended.
(state = 'TASK_STATE_COMPLETED' OR state = 'TASK_STATE_FAILED'
    OR state = 'TASK_STATE_CANCELED' OR state = 'TASK_STATE_REJECTED')

-- name: delete_contexts
-- Deletes some contexts that have not changed since a moment, in conversations without a live task.
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
-- Notes that retention is applied now, unless it was a moment ago. A time far in the future is a wrong clock's.
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
-- The ended tasks that have not changed for the longest time: the oldest of each state, merged.
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
-- Notes how far a log is trimmed, and how far its snapshot reaches.
UPDATE tasks SET trimmed = ?, folded = ? WHERE no = ?

-- name: versions
-- The versions of watched tasks, for readers that another process may have overtaken, as one row.
SELECT json_group_object(id, version) FROM tasks WHERE id IN (SELECT value FROM json_each(?))

-- name: has_work
-- Whether any task is due or to be canceled; only live ones are in the index tasks_due.
SELECT EXISTS (
    SELECT 1 FROM tasks INDEXED BY tasks_due WHERE due_at IS NOT NULL AND (due_at <= ? OR cancel_requested)
)

-- name: upsert_push
-- Adds a push config. One that replaces another continues where that was, and is tried now; its holder loses its lease.
INSERT INTO pushes (task, id, agent, host, config, delivered, due_at)
VALUES (:task, :id, :agent, :host, :config, :delivered, :due_at)
ON CONFLICT (task, id) DO UPDATE SET
    host = excluded.host, config = excluded.config, claim = claim + 1, due_at = :at,
    attempts = 0, failed_at = NULL, error = '', dead = 0

-- name: drop_push
-- Removes a push config.
DELETE FROM pushes WHERE task = ? AND id = ?

-- name: fill_outbox
-- Makes the entries of a task due that wait for its next event.
UPDATE pushes SET due_at = ? WHERE task = ? AND due_at IS NULL AND dead = 0

-- fragment: config
-- A push config as JSON; NULL for one that cannot be read, which would make the whole statement fail.
CASE WHEN json_valid(pushes.config) THEN json(pushes.config) END

-- name: push_configs
-- The push configs of a task, one row in any case if there is such a task.
SELECT (SELECT json_group_array({config}) FROM pushes WHERE pushes.task = tasks.no)
FROM tasks WHERE id = ? AND tenant = ? AND owner = ? AND agent = ?

-- name: due_hosts
-- The next hosts of due entries.
SELECT DISTINCT host FROM pushes INDEXED BY pushes_due
WHERE agent = ? AND host > ? AND due_at IS NOT NULL AND due_at <= ? ORDER BY host LIMIT ?

-- fragment: entry
-- An entry of the outbox as one JSON value, decoded straight into `errands.model.log.OutboxEntry`.
json_object(
    'task_id', tasks.id, 'scope', json_array(tasks.tenant, tasks.owner, tasks.agent), 'config', {config},
    'delivered', pushes.delivered, 'due_at', pushes.due_at, 'claim', pushes.claim, 'attempts', pushes.attempts,
    'failed_at', pushes.failed_at, 'error', pushes.error, 'dead', pushes.dead
)

-- name: due_entries
-- The entries of one host that may be claimed, the longest due first.
SELECT pushes.task, pushes.id, {entry} FROM pushes INDEXED BY pushes_due JOIN tasks ON tasks.no = pushes.task
WHERE pushes.agent = ? AND pushes.host = ? AND pushes.due_at IS NOT NULL AND pushes.due_at <= ?
ORDER BY pushes.due_at LIMIT ?

-- name: lease_entry
-- Leases an entry; the raised claim is the fence against the former holder.
UPDATE pushes SET claim = claim + 1, due_at = ? WHERE task = ? AND id = ?

-- name: settle_entry
-- Notes what came of a lease, if it was not taken over. Without a time the entry is due now if the log has more.
UPDATE pushes SET
    delivered = :delivered, attempts = :attempts, failed_at = :failed_at, error = :error, dead = :dead,
    due_at = CASE
        WHEN :dead THEN NULL
        WHEN :due_at IS NOT NULL THEN :due_at
        WHEN (SELECT version FROM tasks WHERE tasks.no = pushes.task) > :delivered THEN :now
    END
WHERE task = (SELECT no FROM tasks WHERE tasks.id = :task_id) AND id = :config_id AND claim = :claim

-- name: some_entries
-- The next entries after a task's number, of any agent or one.
SELECT pushes.task, {entry} FROM pushes JOIN tasks ON tasks.no = pushes.task
WHERE pushes.task IN (SELECT DISTINCT task FROM pushes WHERE task > :after ORDER BY task LIMIT :limit)
    AND (:agent IS NULL OR pushes.agent = :agent)
ORDER BY pushes.task, pushes.id

-- name: last_task_with_entries
-- The last of those tasks.
SELECT max(task) FROM (SELECT DISTINCT task FROM pushes WHERE task > ? ORDER BY task LIMIT ?)

-- name: outbox_backlog
-- The time since which an agent's oldest entry has been due or leased, and how many are dead. Reads some of each.
SELECT
    (SELECT min(due_at) FROM (
        SELECT due_at FROM pushes INDEXED BY pushes_due WHERE agent = :agent AND due_at IS NOT NULL LIMIT :most
    )),
    (SELECT count(*) FROM (SELECT 1 FROM pushes INDEXED BY pushes_dead WHERE agent = :agent AND dead LIMIT :most))

-- name: retry_entry
-- Makes an entry due and forgets its failures.
UPDATE pushes SET due_at = ?, claim = claim + 1, attempts = 0, failed_at = NULL, error = '', dead = 0
WHERE task = (SELECT no FROM tasks WHERE tasks.id = ?) AND id = ?

-- name: note_access
-- Appends to the access log.
INSERT INTO accesses (at, id, data) VALUES (?, ?, ?)

-- name: some_accesses
-- The next entries of the access log.
SELECT at, id, data FROM accesses WHERE (at, id) > (?, ?) ORDER BY at, id LIMIT ?

-- name: delete_accesses
-- Deletes some old entries of the access log.
DELETE FROM accesses WHERE (at, id) IN (SELECT at, id FROM accesses WHERE at <= ? ORDER BY at, id LIMIT ?)

-- name: report
-- Replaces the report of a process.
INSERT INTO processes (id, at, data) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET at = excluded.at, data = excluded.data

-- name: reports
-- The reports since a moment; there are few rows.
SELECT data FROM processes WHERE at > ?

-- name: delete_reports
-- Deletes the reports of processes that have been silent since a moment.
DELETE FROM processes WHERE at <= ?

-- name: delete_report
-- Deletes the report of one process.
DELETE FROM processes WHERE id = ?
