"""The operator API at `/admin/…`: what the console and the command line need beyond A2A. See docs/operator-api.md.

A caller is identified as for an operation of the protocol, and access rules apply unchanged: reading tasks counts as
`ListTasks` and `GetTask`, canceling as `CancelTask`, sending a task again and answering a review as `SendMessage`. An
operator is a caller whom an access rule lets use tasks of others, or everyone where callers are not asked who they are.
Other callers see only their own tasks: what A2A shows of them and when things happened, not how the agent works inside.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec

from errands import errors
from errands.model import core, log
from errands.model.base import UNREADABLE, encode
from errands.model.requests import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from errands.operations import OPERATIONS, Operation
from errands.policy.agent_oversight import AgentOversight
from errands.policy.reviews import (
    Review,
    ReviewDesk,
    Verdict,
    names_of,
    open_review,
    revealed,
    shown_to_reviewer,
    verdict_message,
)
from errands.policy.run import stored_records
from errands.policy.task_archive import archive_lines
from errands.policy.timeline import TimelineFold
from errands.runtime.call import CallContext
from errands.runtime.figures import METRICS
from errands.runtime.inner import InnerAgents
from errands.runtime.journal import new_id
from errands.runtime.leases import ActiveTask
from errands.runtime.streams import StreamItem
from errands.server.access_audit import AccessAudit
from errands.server.admin_documents import (
    active_document,
    bounded_task,
    by_urgency,
    policy_document,
    process_document,
    webhook_document,
)
from errands.server.asgi import JSON_TYPE, Header, HttpExchange
from errands.server.blobs import BlobAddresses
from errands.server.cards import CardForm
from errands.server.console_gate import CONSOLE_PATHS
from errands.server.dispatch import last_event_id
from errands.server.errors import client_error, error_headers
from errands.server.log_feed import LogFeed, kinds_of
from errands.server.request_guard import check_content_type
from errands.server.task_table import TableRow, TaskFilter, TaskScan, page_size, whole_number
from errands.wire.card_check import check_card
from errands.wire.sse import ERROR_EVENT, GAP_EVENT, frame, named, plain_frame
from errands.wire.status import to_http

if TYPE_CHECKING:
    from errands.server.app import A2AServer

LIST = OPERATIONS["ListTasks"]
GET = OPERATIONS["GetTask"]
CANCEL = OPERATIONS["CancelTask"]
SEND = OPERATIONS["SendMessage"]
LIST_PUSHES = OPERATIONS["ListTaskPushNotificationConfigs"]
CREATE_PUSH = OPERATIONS["CreateTaskPushNotificationConfig"]
DELETE_PUSH = OPERATIONS["DeleteTaskPushNotificationConfig"]

#: Items of a list that has no cursor.
MOST_LISTED = 1000
#: Entries of the outbox that are read for one answer.
MOST_ENTRIES = 20_000
#: The number of events, the newest ones of a log, from which a timeline is made.
MOST_EVENTS = 100_000
#: Bytes of the events of a task whose archive is sent.
MOST_ARCHIVED = 64 * 2**20
#: Milliseconds between the samples of a process that are shown without `since`.
STEP = 15_000
#: The header that says how many items or events are left out.
LEFT_OUT = b"errands-left-out"
#: Bytes of the largest request body.
MAX_BODY = 64 * 1024
#: Events of the longest log in which the rule that asks for a review is looked up.
MOST_RECORDS = 1000
#: Reviews of one answer whose rules are looked up.
MOST_EXPLAINED = 50
_NO_STORE: tuple[Header, ...] = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


class Endpoint(NamedTuple):
    """One path of the operator API. `{name}` is a parameter; `page` names the method of `AdminApi` that serves it."""

    method: Literal["GET", "POST"]
    path: str
    page: str
    streams: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        """The HTTP methods that the path accepts."""
        return ("GET", "HEAD") if self.method == "GET" and not self.streams else (self.method,)

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(self.path)))


ENDPOINTS = (
    Endpoint("GET", "/admin/me", "show_caller"),
    Endpoint("GET", "/admin/tasks", "list_tasks"),
    Endpoint("GET", "/admin/tasks/{task}", "show_task"),
    Endpoint("GET", "/admin/tasks/{task}/timeline", "show_timeline"),
    Endpoint("GET", "/admin/tasks/{task}/events", "list_events"),
    Endpoint("GET", "/admin/tasks/{task}/stream", "stream_events", streams=True),
    Endpoint("GET", "/admin/tasks/{task}/archive", "show_archive"),
    Endpoint("POST", "/admin/tasks/{task}/cancel", "cancel_task"),
    Endpoint("POST", "/admin/tasks/{task}/retry", "retry_task"),
    Endpoint("GET", "/admin/running", "list_running"),
    Endpoint("GET", "/admin/reviews", "list_reviews"),
    Endpoint("POST", "/admin/reviews/{task}", "answer_review"),
    Endpoint("GET", "/admin/outbox", "list_outbox"),
    Endpoint("POST", "/admin/outbox/{task}/{config}/retry", "retry_delivery"),
    Endpoint("POST", "/admin/outbox/{task}/{config}/drop", "drop_webhook"),
    Endpoint("GET", "/admin/agent", "show_agent"),
    Endpoint("GET", "/admin/figures", "show_figures"),
    Endpoint("GET", "/admin/metrics-table", "show_metrics_table"),
)


class AdminRequest(NamedTuple):
    """A request to the operator API."""

    exchange: HttpExchange
    #: The parameters in the path.
    values: dict[str, str]

    @property
    def query(self) -> dict[str, str]:
        return self.exchange.query

    @property
    def task_id(self) -> str:
        return self.values["task"]

    @property
    def config_id(self) -> str:
        return self.values["config"]

    @property
    def tenant(self) -> str | None:
        """The tenant that the caller names."""
        return self.exchange.query.get("tenant") or None


class Sight(NamedTuple):
    """The caller of a request, and which tasks it may see."""

    call: CallContext
    reach: log.Reach
    agents: tuple[str, ...]
    is_operator: bool

    def reaches(self, scope: log.Scope) -> bool:
        """Return whether the caller may see the tasks of a scope."""
        own = self.call.scope._replace(agent=scope.agent)
        return scope.agent in self.agents and log.is_reached(scope, own, self.reach)


class VisibleTask(NamedTuple):
    """A task that a caller may see. Only operators see all of it."""

    stored: log.StoredTask
    call: CallContext
    is_operator: bool


class ReviewAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an answer to a review."""

    approved: bool
    comment: str = ""
    #: The `since` of the review that was read. A review that began later is not answered.
    since: int | None = None


class AdminAnswer(NamedTuple):
    """The answer of an endpoint: a value that is sent as JSON, and the number of items that it leaves out."""

    value: Any
    left_out: int = 0


class _Skills(msgspec.Struct):
    skills: list[dict[str, Any]] = []


T = TypeVar("T")
Page = Callable[[AdminRequest], Awaitable[AdminAnswer | None]]


class AdminApi:
    """The operator API of one server."""

    def __init__(self, server: A2AServer, inner: InnerAgents, audit: AccessAudit | None) -> None:
        self._server = server
        self._audit = audit
        self._engine = server.engine
        self._agent = server.agent_card.name
        self._inner_agents = inner
        self._inner = tuple(inner.workers)
        self._addresses = None if server.blobs is None else BlobAddresses(server.blobs, server.settings)
        #: Logs may be long, so only two timelines or archives are made at a time.
        self._large_answers = asyncio.Semaphore(2)
        self._pages: list[tuple[Endpoint, re.Pattern[str], Page]] = [
            (endpoint, endpoint.pattern, getattr(self, endpoint.page)) for endpoint in ENDPOINTS
        ]

    async def serve(self, exchange: HttpExchange, path: str) -> None:
        """Serve a request for a path below `/admin/`."""
        try:
            await self._serve(exchange, path)
        except errors.A2AError as error:
            await _refuse(exchange, error)
        except errors.EngineError as error:
            await _refuse(exchange, client_error(error, "a request to the operator API"))

    async def _serve(self, exchange: HttpExchange, path: str) -> None:
        self._server.console.check(exchange)
        found = [(endpoint, match, page) for endpoint, regex, page in self._pages if (match := regex.fullmatch(path))]
        if not found:
            raise errors.MethodNotFoundError(f"There is nothing at {exchange.method} {path[:200]}")
        endpoint, match, page = found[0]
        if not await exchange.allows(*endpoint.methods):
            return
        if endpoint.method == "POST":
            check_content_type(exchange)
        values = {name: unquote(value) for name, value in match.groupdict().items()}
        answer = await page(AdminRequest(exchange, values))
        if answer is not None:
            headers = _NO_STORE
            if answer.left_out:
                headers = (*_NO_STORE, (LEFT_OUT, b"%d" % answer.left_out))
            await exchange.respond(200, encode(answer.value), JSON_TYPE, headers)

    # Identifying the caller

    async def _identify(
        self, asked: AdminRequest, operation: Operation, request: Any, *, widest: bool = False, shows_tasks: bool = True
    ) -> CallContext:
        """Return the call behind a request that is judged like an operation. Raises only `A2AError`.

        Reading tasks of other owners is recorded in the audit trail.
        """
        exchange = asked.exchange
        try:
            call = await self._server.dispatcher.identify(
                operation, request, exchange, widest=widest, inner=self._inner
            )
            if not call.caller:
                # Middleware may admit callers without a name. They are operators, as without authentication, but do
                # not see the tasks of callers with a name.
                self._server.console.check_nameless(exchange)
                call.is_operator = True
                if self._server.console.is_open:
                    call.reach = "tenant" if request.tenant else "agent"
            call.large_reads = exchange
            if self._audit is not None and shows_tasks:
                await self._audit.admit(operation, request, call, exchange)
        except errors.A2AError as error:
            await self._deny(asked, operation, request, error)
            raise
        return call

    async def _deny(self, asked: AdminRequest, operation: Operation, request: Any, error: errors.A2AError) -> None:
        if self._audit is not None:
            await self._audit.deny(operation.name, request, asked.exchange, error)

    async def _survey(self, asked: AdminRequest, operation: Operation = LIST, *, shows_tasks: bool = True) -> Sight:
        """Return which tasks the caller may see. An answer that `shows_tasks` is recorded in the audit trail."""
        tenant = asked.tenant
        request: Any = ListTasksRequest(tenant=tenant)
        if operation is LIST_PUSHES:
            request = ListTaskPushNotificationConfigsRequest(task_id="", tenant=tenant)
        call = await self._identify(asked, operation, request, widest=True, shows_tasks=shows_tasks)
        return Sight(call, call.reach, self._agents(call), call.is_operator)

    def _agents(self, call: CallContext) -> tuple[str, ...]:
        """Return the agents whose tasks a caller may see. Only operators see those of inner agents."""
        return (self._agent, *self._inner) if call.is_operator else (self._agent,)

    async def _find(
        self, asked: AdminRequest, operation: Operation = GET, request: Any = None, *, with_content: bool = False
    ) -> VisibleTask:
        """Return the task that a request is about. Raises `TaskNotFoundError`, also for tasks of others."""
        request = request or GetTaskRequest(id=asked.task_id, tenant=asked.tenant)
        call = await self._identify(asked, operation, request)
        try:
            stored = await self._load_head(asked.task_id, call)
            call.scope = stored.scope
            if with_content:
                stored = await call.load(self._engine, asked.task_id)
        except errors.TaskNotFoundError as error:
            await self._deny(asked, operation, request, error)
            raise
        return VisibleTask(stored, call, call.is_operator)

    async def _load_head(self, task_id: str, call: CallContext) -> log.StoredTask:
        """Return a task that the caller may see, without its content. Raises `TaskNotFoundError`."""
        agents = self._agents(call)
        if self._server.console.is_open:
            stored = await self._engine.load_head(task_id, None)
            if stored.scope.agent not in agents:
                raise errors.TaskNotFoundError(taskId=task_id)
            return stored
        for agent in agents:
            with suppress(errors.TaskNotFoundError):
                return await self._engine.load_head(task_id, call.scope._replace(agent=agent))
        raise errors.TaskNotFoundError(taskId=task_id)

    async def show_caller(self, asked: AdminRequest) -> AdminAnswer:
        sight = await self._survey(asked, shows_tasks=False)
        server = self._server
        return AdminAnswer(
            {
                "owner": sight.call.caller,
                "email": sight.call.email,
                "tenant": sight.call.scope.tenant,
                "reach": sight.reach,
                "isOperator": sight.is_operator,
                "canWrite": await self._can_write(asked, sight),
                "agent": self._agent,
                "innerAgents": list(self._inner),
                "version": server.agent_card.version,
                "authenticated": bool(sight.call.caller),
                "asksWhoCalls": server.asks_who_calls,
                "now": self._engine.clock(),
                "console": {"setting": server.settings.console, "paths": list(CONSOLE_PATHS)},
                "protocolVersions": list(server.dispatcher.routes.versions),
                "streaming": server.agent_card.capabilities.streaming,
                "maxUploadBytes": None if server.blob_pages is None else server.settings.max_upload_bytes,
            }
        )

    async def _can_write(self, asked: AdminRequest, sight: Sight) -> bool:
        """Return whether the caller may change the tasks that it sees."""
        if not sight.call.caller:
            return True
        try:
            call = await self._server.dispatcher.identify(CANCEL, CancelTaskRequest(id=""), asked.exchange)
        except errors.PermissionDeniedError:
            return False
        return call.is_operator or not sight.is_operator

    # Tasks

    async def list_tasks(self, asked: AdminRequest) -> AdminAnswer:
        query = asked.query
        wanted = TaskFilter.read(query)
        limit = page_size(query)
        sight = await self._survey(asked)
        agents = sight.agents
        if query.get("agent"):
            agents = tuple(agent for agent in agents if agent == query["agent"])

        def list_tasks(page: log.ListQuery) -> Awaitable[log.ListPage]:
            return sight.call.list(self._engine, page)

        scan = TaskScan(list_tasks, sight.call.scope, sight.reach, agents, wanted)
        page = await scan.page(limit, query.get("before", ""))
        rows = [TableRow.of(stored, is_operator=sight.is_operator) for stored in page.tasks]
        return AdminAnswer({"tasks": rows, "next": page.cursor or None, "scanned": page.scanned})

    async def show_task(self, asked: AdminRequest) -> AdminAnswer:
        seen = await self._find(asked, with_content=True)
        stored = seen.stored
        task, left_out = bounded_task(stored.task)
        if self._addresses is not None:
            task = self._addresses.addressed(task, stored.scope, asked.exchange)
        parent, depth, children = await self._family(stored)
        return AdminAnswer(
            {
                **msgspec.to_builtins(TableRow.of(stored, is_operator=seen.is_operator, with_artifacts=True)),
                "task": task,
                "leftOut": left_out,
                "maxAttempts": self._server.settings.max_attempts,
                "parent": parent,
                "depth": depth,
                "children": children if seen.is_operator else [],
                "canRetry": stored.scope.agent == self._agent and bool(stored.task.history),
            }
        )

    async def _family(self, stored: log.StoredTask) -> tuple[str, int, list[str]]:
        """Return the parent task, the depth of delegation, and the tasks that this one has delegated.

        Only the beginning of a very long log is read.
        """
        fold = TimelineFold(contents=False)
        parent, depth = "", 0
        after, read = 0, 0
        while read < 5000 and (part := await self._engine.read(stored.task.id, stored.scope, after)).events:
            for event in part.events:
                if event.kind == "request" and not parent and b'"parent"' in event.data:
                    with suppress(*UNREADABLE):
                        options = msgspec.json.decode(event.data, type=log.RequestOptions)
                        parent, depth = options.parent, options.depth
            fold.take(event for event in part.events if event.kind == "record" and b'"task_id"' in event.data)
            after, read = part.events[-1].version, read + len(part.events)
            await asyncio.sleep(0)  # an engine in memory does not wait
        return parent, depth, fold.timeline(stored).children

    async def show_timeline(self, asked: AdminRequest) -> AdminAnswer:
        query = asked.query
        start = whole_number(query, "from", 0, 0, 2**53)
        end = whole_number(query, "to", 2**53, 0, 2**53)
        seen = await self._find(asked)
        stored = seen.stored
        last = min(end, stored.version)
        # Of a very long log only the newest events are read.
        after = max(start - 1, last - MOST_EVENTS, 0)
        left_out = after - max(start - 1, 0)
        fold, gap = TimelineFold(contents=seen.is_operator), False
        async with self._large_answers:
            while after < last:
                part = await self._engine.read(stored.task.id, stored.scope, after, min(1000, last - after))
                events = [event for event in part.events if event.version <= last]
                if part.gap:
                    gap = True
                    # Records are kept when other events are gone.
                    until = events[0].version if events else last + 1
                    kept = await self._engine.records(stored.task.id, stored.scope)
                    fold.take([event for event in kept if after < event.version < until][-MOST_RECORDS:])
                if not events:
                    break
                fold.take(events)
                after = events[-1].version
                await asyncio.sleep(0)  # an engine in memory does not wait
        timeline = fold.timeline(stored, gap=gap)
        if left_out:
            timeline.left_out["events"] = left_out
        return AdminAnswer(timeline)

    async def list_events(self, asked: AdminRequest) -> AdminAnswer:
        query = asked.query
        after = whole_number(query, "after", 0, 0, 2**53)
        before = whole_number(query, "before", 0, 0, 2**53) or None
        limit = whole_number(query, "limit", 200, 1, 1000)
        kinds = kinds_of(query)
        seen = await self._find(asked)
        page = await self._feed(seen, asked.exchange, kinds).page(after, before, limit)
        return AdminAnswer({"events": page.events, "gap": page.gap, "next": page.next, "version": seen.stored.version})

    def _feed(
        self, seen: VisibleTask, exchange: HttpExchange, kinds: frozenset[log.EventKind] = frozenset()
    ) -> LogFeed:
        prefix = "" if self._addresses is None else self._addresses.of(exchange, seen.stored.scope.tenant)
        return LogFeed(self._engine, seen.stored, is_operator=seen.is_operator, kinds=kinds, file_prefix=prefix)

    async def stream_events(self, asked: AdminRequest) -> None:
        exchange = asked.exchange
        after = last_event_id(exchange)
        if after is None:
            after = whole_number(asked.query, "after", 0, 0, 2**53)
        seen = await self._find(asked)
        stream = self._feed(seen, exchange).stream(after, self._server.settings.keep_alive)
        stream = self._server.dispatcher.count_stream(stream, exchange, seen.call)
        await exchange.send_frames(
            stream,
            _frame,
            lambda error: named(ERROR_EVENT, plain_frame(encode(to_http(error)[1]))),
            end=lambda: named("end", plain_frame(b"{}")),
        )

    async def show_archive(self, asked: AdminRequest) -> None:
        """Send the lines of a task for an archive, with the memory of its conversation unless `memory=0`."""
        seen = await self._find(asked, with_content=True)
        if not seen.is_operator:
            raise errors.PermissionDeniedError("An archive has everything about a task, so it is for operators")
        with_memory = asked.query.get("memory", "") != "0"
        async with self._large_answers:
            try:
                lines = await archive_lines(self._engine, seen.stored, with_memory=with_memory, most=MOST_ARCHIVED)
            except UNREADABLE as error:
                raise errors.UnsupportedOperationError(
                    f"The stored data of the task cannot be read: {error}", taskId=asked.task_id
                ) from None
            await asked.exchange.respond(200, b"".join(line + b"\n" for line in lines), b"application/jsonl", _NO_STORE)

    # Changes

    async def cancel_task(self, asked: AdminRequest) -> AdminAnswer:
        request = CancelTaskRequest(id=asked.task_id, tenant=asked.tenant)
        seen = await self._find(asked, CANCEL, request)
        call = seen.call
        if seen.stored.scope.agent == self._agent:
            await self._server.dispatcher.perform(CANCEL, request, call, asked.exchange)
        else:
            await self._inner_agents.cancel(asked.task_id, call)
        return await self._row(asked.task_id, call)

    async def _row(self, task_id: str, call: CallContext) -> AdminAnswer:
        stored = await call.load(self._engine, task_id)
        return AdminAnswer(TableRow.of(stored, is_operator=call.is_operator, with_artifacts=True))

    async def retry_task(self, asked: AdminRequest) -> AdminAnswer:
        stored = (await self._find(asked, with_content=True)).stored
        if stored.scope.agent != self._agent:
            raise errors.UnsupportedOperationError(
                "Another agent has delegated this task; send the task of that agent again", taskId=stored.task.id
            )
        first = next((one for one in stored.task.history or () if one.role is not core.Role.AGENT), None)
        if first is None:
            raise errors.UnsupportedOperationError("The task has no message to send again", taskId=stored.task.id)
        message = msgspec.structs.replace(first, message_id=new_id(), task_id=stored.task.id)
        metadata = (await self._options_of(stored, first)).metadata or None
        # Access rules see it as a message to the first task, whose owner the new task will have.
        wanted = SendMessageRequest(message=message, metadata=metadata, tenant=asked.tenant)
        call = await self._identify(asked, SEND, wanted)
        if self._server.console.is_open:
            call.scope = stored.scope
        if call.scope != stored.scope:
            raise errors.PermissionDeniedError("The credentials do not allow creating tasks for the owner of this one")
        request = SendMessageRequest(
            message=msgspec.structs.replace(message, task_id=None),
            configuration=SendMessageConfiguration(return_immediately=True),
            metadata=metadata,
        )
        sent = await self._server.dispatcher.perform(SEND, request, call, asked.exchange)
        task_id = sent.task.id if sent.task is not None else sent.message.task_id
        return await self._row(task_id, call)

    async def _options_of(self, stored: log.StoredTask, message: core.Message) -> log.RequestOptions:
        """Return the options of the first message of a task, or empty options if they are no longer stored."""
        for event in (await self._engine.read(stored.task.id, stored.scope, 0, 20)).events:
            if event.kind == "request":
                with suppress(*UNREADABLE):
                    options = msgspec.json.decode(event.data, type=log.RequestOptions)
                    if options.message_id == message.message_id:
                        return options
        return log.PLAIN

    # Work

    async def list_running(self, asked: AdminRequest) -> AdminAnswer:
        sight = await self._survey(asked)
        pool = self._server.pool
        now = self._engine.clock()
        found = []
        for running in await self._engine.running():
            if sight.reaches(running.scope):
                mine = pool.running.get(running.task_id) if running.head.worker == pool.leases.worker_id else None
                found.append(ActiveTask.of(running, now, None if mine is None else mine.started_at))
        rows = [active_document(task, is_operator=sight.is_operator) for task in found[:MOST_LISTED]]
        return AdminAnswer(rows, max(len(found) - MOST_LISTED, 0))

    async def list_reviews(self, asked: AdminRequest) -> AdminAnswer:
        sight = await self._survey(asked)
        limit = whole_number(asked.query, "limit", 200, 1, MOST_LISTED)
        names = names_of(sight.call)
        is_mine = asked.query.get("mine", "") not in ("", "0") and bool(sight.call.caller)
        tenant = None if sight.reach == "agent" else sight.call.scope.tenant
        found: list[log.StoredTask] = []
        # A reviewer also sees the questions of inner agents and of tasks of other owners.
        for agent in (self._agent, *self._inner):
            users = names if is_mine or not sight.is_operator else None
            query = log.AskingQuery(tenant=tenant, agent=agent, users=users, limit=limit + 1)
            asking = await self._engine.asking(query)
            found += [one for one in asking if one.head.asks in names or sight.reaches(one.scope)]
        found.sort(key=lambda stored: (stored.head.status_at, stored.task.id))
        reviews: list[dict[str, Any]] = []
        for stored in found[:limit]:
            review, rule = Review.of(await revealed(self._engine, stored)), ""
            if len(reviews) < MOST_EXPLAINED and stored.version <= MOST_RECORDS:
                with suppress(errors.DamagedTaskError, errors.TaskNotFoundError):
                    known = await stored_records(self._engine, stored.task.id, stored.scope)
                    waiting = open_review(known, stored.head.asks)
                    rule = "" if waiting is None else waiting.call.place
            reviews.append(
                {
                    "taskId": review.task_id,
                    "contextId": review.context_id,
                    "agent": review.agent,
                    "owner": review.owner,
                    "tenant": review.tenant,
                    "user": review.user,
                    "since": review.since,
                    "function": review.function,
                    "subject": review.subject,
                    "text": review.text,
                    "rule": rule,
                }
            )
        return AdminAnswer(reviews, max(len(found) - limit, 0))

    async def answer_review(self, asked: AdminRequest) -> AdminAnswer:
        answer = await self._body(asked, ReviewAnswer)
        verdict = Verdict(answer.approved, answer.comment.strip())
        message = verdict_message(verdict, "", task_id=asked.task_id, context_id=None)
        request = SendMessageRequest(message=message, tenant=asked.tenant)
        call = await self._identify(asked, SEND, request)
        sight, names = Sight(call, call.reach, self._agents(call), call.is_operator), names_of(call)
        query = log.AskingQuery(task_id=asked.task_id, tenant=None if call.reach == "agent" else call.scope.tenant)
        stored = next(iter(await self._engine.asking(query)), None)
        is_asked = stored is not None and stored.head.asks in names
        is_served = stored is not None and stored.scope.agent in (self._agent, *self._inner)
        if stored is None or not is_served or not (is_asked or sight.reaches(stored.scope)):
            error = errors.TaskNotFoundError("No task of this id waits for your review", taskId=asked.task_id)
            await self._deny(asked, SEND, request, error)
            raise error
        user = stored.head.asks
        if call.caller and not is_asked:
            raise errors.PermissionDeniedError(f"The task waits for a review by {user}; only {user} may answer")
        if self._server.pool.draining:
            raise errors.UnavailableError("The server is shutting down; answer again in a moment")
        desk = ReviewDesk(self._server.pool.handlers[self._agent].journal)
        answered = await desk.settle(msgspec.structs.replace(query, users=(user,)), verdict, since=answer.since)
        if not sight.reaches(answered.scope):
            answered = msgspec.structs.replace(answered, task=shown_to_reviewer(answered.task))
        return AdminAnswer(TableRow.of(answered, is_operator=call.is_operator))

    async def _body(self, asked: AdminRequest, kind: type[T]) -> T:
        """Return the body of a request. Raises `A2AError` if it cannot be read."""
        if (asked.exchange.content_length or 0) > MAX_BODY:
            raise errors.PayloadTooLargeError(f"The body may have {MAX_BODY} bytes at most")
        dispatcher = self._server.dispatcher
        if dispatcher.checks_head:
            await dispatcher.check_head(asked.exchange)
        body = await asked.exchange.body()
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            raise errors.InvalidParamsError(f"The body is not valid: {error}") from None
        except (msgspec.DecodeError, RecursionError):
            raise errors.ParseError("The request body is not valid JSON") from None

    # Webhooks

    async def list_outbox(self, asked: AdminRequest) -> AdminAnswer:
        sight = await self._survey(asked, LIST_PUSHES)
        if not sight.is_operator:
            raise errors.PermissionDeniedError("The outbox is for operators")
        limit = whole_number(asked.query, "limit", 100, 1, MOST_LISTED)
        only_dead = asked.query.get("dead", "") not in ("", "0")
        found: list[log.OutboxEntry] = []
        looked = matched = 0
        for agent in sight.agents:
            async for entry in self._engine.outbox(agent):
                looked += 1
                if looked > MOST_ENTRIES:
                    break
                if looked % 100 == 0:
                    await asyncio.sleep(0)  # an engine in memory does not wait
                is_wanted = entry.dead or (not only_dead and (entry.attempts > 0 or entry.due_at is not None))
                if not is_wanted or not sight.reaches(entry.scope):
                    continue
                matched += 1
                found.append(entry)
                if len(found) > 2 * limit:
                    found = sorted(found, key=by_urgency)[:limit]
        found = sorted(found, key=by_urgency)[:limit]
        return AdminAnswer([webhook_document(entry) for entry in found], matched - len(found))

    async def retry_delivery(self, asked: AdminRequest) -> AdminAnswer:
        request = TaskPushNotificationConfig(url="-", id=asked.config_id, task_id=asked.task_id, tenant=asked.tenant)
        await self._find_webhook(asked, CREATE_PUSH, request)
        await self._engine.retry_delivery(asked.task_id, asked.config_id)
        return AdminAnswer({"taskId": asked.task_id, "configId": asked.config_id})

    async def drop_webhook(self, asked: AdminRequest) -> AdminAnswer:
        task_id, config_id = asked.task_id, asked.config_id
        request = DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=config_id, tenant=asked.tenant)
        scope = await self._find_webhook(asked, DELETE_PUSH, request)
        await self._engine.commit(
            log.Change(task_id=task_id, scope=scope, at=self._engine.clock(), drop_push=config_id)
        )
        return AdminAnswer({"taskId": task_id, "configId": config_id})

    async def _find_webhook(self, asked: AdminRequest, operation: Operation, request: Any) -> log.Scope:
        """Return the scope of the task whose webhook an operator changes. Raises `A2AError`."""
        seen = await self._find(asked, operation, request)
        if not seen.is_operator:
            raise errors.PermissionDeniedError("The outbox is for operators")
        scope = seen.stored.scope
        configs = await self._engine.push_configs(asked.task_id, scope)
        if asked.config_id not in (config.id for config in configs):
            raise errors.TaskNotFoundError("The task has no push notification config of this id", taskId=asked.task_id)
        return scope

    # Figures

    async def show_figures(self, asked: AdminRequest) -> AdminAnswer:
        since = whole_number(asked.query, "since", 0, 0, 2**53)
        sight = await self._survey(asked, shows_tasks=False)
        if sight.reach != "agent":
            raise errors.PermissionDeniedError(
                "Figures are about the tasks of all tenants, so they are for operators with reach=agent"
            )
        reporter = self._server.reporter
        if reporter is None:
            raise errors.MethodNotFoundError("Metrics are off; ERRANDS_METRICS=true turns them on")
        current = reporter.current()
        processes = [one for one in await self._engine.processes() if one.agent == self._agent and one.id != current.id]
        # All samples together would be a megabyte.
        moments = reporter.history(since=since, step=None if since else STEP)
        return AdminAnswer(
            {
                "now": self._engine.clock(),
                "process": {
                    **process_document(current),
                    "samples": [{"at": moment.at, "figures": moment.samples} for moment in moments],
                },
                "processes": [process_document(one) for one in processes[:MOST_LISTED]],
            },
            max(len(processes) - MOST_LISTED, 0),
        )

    async def show_metrics_table(self, asked: AdminRequest) -> AdminAnswer:
        await self._survey(asked, shows_tasks=False)
        return AdminAnswer([metric._asdict() for metric in METRICS.values()])

    # The agent

    async def show_agent(self, asked: AdminRequest) -> AdminAnswer:
        sight = await self._survey(asked, shows_tasks=False)
        server, exchange = self._server, asked.exchange
        document = server.cards.document(exchange, CardForm.BOTH).body
        report = check_card(document)
        policies = []
        for agent in sight.agents if sight.is_operator else ():
            oversight = server.pool.handlers[agent].oversight
            policies.append(policy_document(agent, oversight if isinstance(oversight, AgentOversight) else None))
        return AdminAnswer(
            {
                "card": msgspec.Raw(document),
                "findings": [
                    {"severity": one.severity, "where": one.path, "text": f"{one.problem}; {one.remedy}"}
                    for one in report.findings
                ],
                "skills": msgspec.json.decode(document, type=_Skills).skills,
                "policy": policies[0] if policies else None,
                "policies": policies,
                "innerAgents": list(self._inner) if sight.is_operator else [],
            }
        )


def _frame(item: StreamItem) -> bytes:
    event = frame(item.version, item.data)
    return named(GAP_EVENT, event) if item.gap else event


async def _refuse(exchange: HttpExchange, error: errors.A2AError) -> None:
    status, body = to_http(error)
    await exchange.respond(status, encode(body), JSON_TYPE, (*_NO_STORE, *error_headers(error)))
