"""The log of a task and the one thing that may be written to it: a `Change`.

These structs travel between the runtime and the engines and never over the wire.
"""

from __future__ import annotations

import enum
from typing import Any, Literal, NamedTuple

import msgspec

from errands.model.core import PAUSED_STATES, Task, TaskState
from errands.tracing import TraceContext


class Scope(NamedTuple):
    """The tenant, owner and agent of a task. Every read and write takes one; a task of another scope is "not found"."""

    #: The customer or part of an organisation that the caller belongs to; "" without tenants.
    tenant: str = ""
    #: Who sent the first message of the task; "" when callers are anonymous.
    owner: str = ""
    #: The agent that works on it: several agents may share a store without seeing each other's tasks.
    agent: str = ""


#: How far a query reaches from a scope, always within its agent: the scope itself, its owner in every tenant, every
#: owner of its tenant, or every owner in every tenant.
Reach = Literal["scope", "owner", "tenant", "agent"]


def reached(scope: Scope, reach: Reach) -> tuple[str | None, str | None]:
    """Return the tenant and the owner that a query is about; None means every one."""
    tenant = scope.tenant if reach in ("scope", "tenant") else None
    return tenant, scope.owner if reach in ("scope", "owner") else None


def is_reached(other: Scope, scope: Scope, reach: Reach) -> bool:
    """Return whether tasks of another scope are within the reach."""
    tenant, owner = reached(scope, reach)
    return other.agent == scope.agent and tenant in (None, other.tenant) and owner in (None, other.owner)


EventKind = Literal["task", "message", "request", "status", "artifact", "cancel", "record"]

#: The kinds that subscribers are shown. The others are internal: a message that joined the history, the options of its
#: sender, a request to cancel, and records of a run (`errands.policy.records`).
STREAMED_KINDS = frozenset({"task", "status", "artifact"})
#: The kinds that do not change the task itself.
UNFOLDED_KINDS = frozenset({"request", "cancel", "record"})


class Draft(msgspec.Struct, frozen=True, gc=False):
    """An event that has no position in a log yet.

    `data` is the event as a v1.0 `StreamResponse` in JSON: encoded once, stored as it is, sent as it is.
    """

    kind: EventKind
    data: bytes


class LeaseRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A lease, as the first event after it was taken records it."""

    attempt: int
    worker: str
    #: When the lease ends unless it is extended.
    until: int
    #: Why it was taken: for a new turn, or because the lease before it expired or was given back.
    cause: Literal["new", "expired", "given back"]


class Event(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One entry of a task's log. `version` is its position, counted from 1 without gaps."""

    version: int
    kind: EventKind
    data: bytes
    #: The time of its commit; 0 for an event that is not in the log.
    at: int = 0
    #: The lease that was taken since the event before it, if any.
    lease: LeaseRecord | None = None


class Restored(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task from another store. Its log keeps its versions, times and leases."""

    head: Head
    #: The events that are kept. Of those up to `trimmed` only records are.
    events: list[Event]
    #: The events up to this version are no longer kept.
    trimmed: int = 0


class Work(enum.Enum):
    """What a change does to the task's position in the queue."""

    KEEP = "keep"
    #: A worker may claim it from `due_at` on.
    READY = "ready"
    #: It is claimed by `worker` until `due_at`; the attempt number goes up by one.
    LEASE = "lease"
    #: Nothing is to be done until the next change.
    IDLE = "idle"


# As module constants for the same reason as the states.
KEEP = Work.KEEP
READY = Work.READY
LEASE = Work.LEASE
IDLE = Work.IDLE


class PushConfig(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A webhook that is sent the events of one task."""

    id: str
    url: str
    #: Host and port of the URL: deliveries to one host are limited together.
    host: str
    #: Sent as `X-A2A-Notification-Token`.
    token: str = ""
    #: Sent as `Authorization: SCHEME CREDENTIALS`.
    scheme: str = ""
    credentials: str = ""
    #: The version of A2A in which the config was made, and in which its notifications are written.
    protocol: str = "1.0"

    def __repr__(self) -> str:
        # Paths and queries of webhooks often hold a secret, and the others are secrets.
        return f"PushConfig(id={self.id!r}, host={self.host!r}, protocol={self.protocol!r})"


class OutboxEntry(msgspec.Struct, kw_only=True, gc=False):
    """A push config with the position up to which its task's log was delivered.

    What is to be sent is in the log, so an entry is small however much is left to deliver.
    """

    task_id: str
    scope: Scope
    config: PushConfig
    #: The events up to this version were delivered.
    delivered: int
    #: When it is due: ready since then, or the end of the lease. None: there is nothing to deliver, or it is dead.
    due_at: int | None = None
    #: How often it was leased: the fence of a delivery.
    claim: int = 0
    #: Failures since the last delivery that succeeded, the time of the first, and why the last one failed.
    attempts: int = 0
    failed_at: int | None = None
    error: str = ""
    #: Whether delivery was given up: a dead letter.
    dead: bool = False


class OutboxBacklog(NamedTuple):
    """What is left to deliver to the webhooks of one agent's tasks."""

    #: Since when the longest due entry is due; None when none is.
    due_since: int | None
    #: Dead letters.
    dead: int


class Delivery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of a delivery that was leased."""

    task_id: str
    config_id: str
    #: The fence; see `OutboxEntry.claim`.
    claim: int
    delivered: int
    #: When to go on. None: at once if the log has more, else with the next event.
    due_at: int | None = None
    attempts: int = 0
    failed_at: int | None = None
    error: str = ""
    dead: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that one commit does to one task: all of it or nothing."""

    task_id: str
    scope: Scope
    events: tuple[Draft, ...] | list[Draft] = ()

    # Conditions: what must be true for the change to be accepted.
    #: The task is at this version; 0 means it must not exist; None means it does not matter.
    expected: int | None = None
    #: The task is in one of these states.
    expected_states: frozenset[TaskState] | None = None
    #: The lease with this attempt number has not been taken over; for a change that takes it, it may have ended.
    fence: int | None = None
    #: No message with this digest was accepted since `receipt_since`.
    receipt: bytes | None = None
    receipt_since: int = 0

    # Effects: what becomes true.
    at: int
    state: TaskState | None = None
    #: The whole task after this change: stored as the snapshot, so `expected` must be given.
    fold: Task | None = None
    work: Work = Work.KEEP
    due_at: int = 0
    worker: str = ""
    #: How many unread messages are added (+) or done (-).
    unread: int = 0
    cancel_requested: bool | None = None
    direct: bool | None = None
    #: The holder stops in good order and gives back an unfinished turn: this attempt does not count against the task.
    gives_back: bool = False
    #: The one user who may answer from now on. Without it, every change of state ends what was asked before.
    asks: str | None = None
    #: What the agent remembers of the task's conversation from now on; see `Storage.load_context`.
    context: bytes | None = None
    #: A push config that is added, or replaces the one of the same id. The events of this change are sent to it.
    push: PushConfig | None = None
    #: How many configs a task may have.
    push_limit: int = 10
    #: The id of a push config that is removed; an unknown id changes nothing.
    drop_push: str | None = None

    # Set once, when the task is created.
    context_id: str = ""
    #: A task from another store. `fold` is the whole of it, `expected` must be 0, and `work` is READY if it is due.
    restored: Restored | None = None


class Head(msgspec.Struct, gc=False):
    """The state of a task without its content: what a change is judged against."""

    version: int = 0
    state: TaskState = TaskState.UNSPECIFIED
    #: How often the task was leased: the fence.
    attempt: int = 0
    #: `attempt` when the last turn ended; the attempts above it belong to this turn.
    attempt_base: int = 0
    #: How many of those were given back in good order, by a process that stopped.
    given_back: int = 0
    #: The worker that holds the lease, or "".
    worker: str = ""
    #: When the task is due: ready since then, or the lease's end. None: nothing to do.
    due_at: int | None = None
    #: How the task was leased: it was ready, or its former lease had expired. "" once that is in the log.
    claimed: Literal["", "ready", "expired"] = ""
    #: Messages that were accepted but not yet handled by a finished turn, the current one included.
    unread: int = 0
    cancel_requested: bool = False
    #: The answer is the status message alone (`reply_directly`), not the task.
    direct: bool = False
    #: The one user, by id or e-mail address, whose answer a paused task waits for; "" when it waits for its owner.
    asks: str = ""
    created_at: int = 0
    updated_at: int = 0
    status_at: int = 0
    #: The ids of its push configs, sorted. The commit looks at the outbox only if there are any.
    pushes: tuple[str, ...] = ()


#: The head of a task before its first change.
NEW = Head()


class StoredTask(msgspec.Struct, kw_only=True, gc=False):
    """A task as an engine returns it: the protocol's task and what the wire has no field for."""

    task: Task
    head: Head
    scope: Scope
    #: Why its stored data cannot be read; "" for a task that can. See `errands.engines.damage`.
    damage: str = ""

    @property
    def version(self) -> int:
        """The version of its newest event."""
        return self.head.version

    @property
    def state(self) -> TaskState:
        """Its state."""
        return self.head.state

    @property
    def pause_fence(self) -> int | None:
        """The fence of a change that the holder of a paused task must see; without a holder it would not be seen."""
        return self.head.attempt if self.head.state in PAUSED_STATES else None


class RunningTask(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task that is leased, without its content."""

    task_id: str
    context_id: str
    scope: Scope
    head: Head


class Lease(NamedTuple):
    """A running task as its holder knows it; `attempt` is the fence."""

    task_id: str
    attempt: int


class LeaseSignal(NamedTuple):
    """What a holder learns when it extends its leases: the lease is lost, or the task is to be canceled."""

    task_id: str
    lost: bool
    cancel_requested: bool


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of a listing, and the page that is wanted."""

    scope: Scope
    reach: Reach = "scope"
    context_id: str | None = None
    state: TaskState | None = None
    status_after: int | None = None
    page_size: int = 50
    #: Bytes of stored content that are read for one page, unless a single task has more. Without this bound a client
    #: could fill a server's memory with one request, because what it sent before may be large.
    page_bytes: int = 8 * 2**20
    #: Whether a page that would have to be shorter for its size is refused. Engines may not know this.
    only_small: bool = False
    page_token: str = ""
    #: False leaves the artifacts out, and does not read them.
    with_artifacts: bool = False


class AskingQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filters for the tasks that wait for one user's answer; None matches any."""

    task_id: str | None = None
    tenant: str | None = None
    agent: str | None = None
    #: The ids and e-mail addresses that may be asked.
    users: tuple[str, ...] | None = None
    limit: int = 1000

    def matches(self, scope: Scope, head: Head) -> bool:
        """Return whether a task matches, apart from its id."""
        return (
            head.asks != ""
            and (self.tenant is None or scope.tenant == self.tenant)
            and (self.agent is None or scope.agent == self.agent)
            and (self.users is None or head.asks in self.users)
        )


class ListPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of tasks; on the last one the token is empty."""

    tasks: list[StoredTask]
    next_page_token: str
    total_size: int


class LogSlice(NamedTuple):
    """Events after a version. `gap` is true when some of them are no longer kept."""

    events: list[Event]
    gap: bool


class RequestOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options that came with a message: the data of a `request` event."""

    message_id: str = ""
    accepted_output_modes: list[str] = []
    metadata: dict[str, Any] = {}
    extensions: list[str] = []
    #: For executors, which see the whole configuration.
    history_length: int | None = None
    return_immediately: bool = False
    #: The sender's e-mail address, if the authentication knows it.
    email: str = ""
    #: The task that delegated its work to this one. A request from outside cannot set it.
    parent: str = ""
    #: The delegation depth: how many tasks above it have delegated work, here or, as the sender says, elsewhere.
    depth: int = 0
    #: The sender and the address it used, for the audit trail.
    caller: str = ""
    address: str = ""
    #: The place in a trace where the message was accepted. Its turn continues the trace, in any process.
    trace: TraceContext | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether there is nothing but the message's id."""
        return self == RequestOptions(message_id=self.message_id)


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who wants a task canceled, for the audit trail: the data of a `cancel` event."""

    caller: str = ""
    address: str = ""


class AccessEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that the log of no task shows, for the audit trail: who made it, from where, and the decision."""

    id: str
    at: int
    #: A look at tasks, a transfer of a file, a change of a webhook, or a request that was refused.
    action: Literal["read", "file", "webhook", "denied", "unreadable"]
    operation: str = ""
    task: str = ""
    #: The caller; "" when it is not known.
    by: str = ""
    email: str = ""
    address: str = ""
    #: Whose tasks the request is about.
    tenant: str = ""
    owner: str = ""
    agent: str = ""
    #: "allowed", or the reason of the error.
    outcome: str = "allowed"
    detail: dict[str, Any] = {}


#: Seconds after its last report that a process is taken to be gone.
SILENT_AFTER = 30.0


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a process that shares the store. It reports every few seconds; only its newest report is kept."""

    #: The name under which it holds leases: host name, process id and a random number.
    id: str
    #: The agent that clients reach here, and what the process does for it.
    agent: str
    role: str
    #: The version of errands.
    version: str
    #: Names the processes that listen on the same ports as this one; "" if none do.
    group: str = ""
    #: When it started, and when it reported.
    started_at: int
    at: int
    #: The current values of its metrics as JSON: a list of `errands.runtime.figures.Sample`.
    figures: bytes = b"[]"


def silent_since(now: int) -> int:
    """Return the time since which a process must have reported, in milliseconds."""
    return now - int(SILENT_AFTER * 1000)


#: No options.
PLAIN = RequestOptions()
