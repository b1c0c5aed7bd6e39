"""`TaskManager`: the operations of the protocol on tasks, one method each, whatever the binding."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec

from errands import errors
from errands.clock import from_iso
from errands.engines.subscriptions import Expectation
from errands.lifecycle import trim
from errands.model import core, log, requests
from errands.runtime.call import CallContext
from errands.runtime.cancellation import Canceler
from errands.runtime.executor import Identifiers
from errands.runtime.pool import WorkerPool
from errands.runtime.push import push_guard, read_config, shown_config
from errands.runtime.settings import Settings
from errands.runtime.streams import EventStream, Streams, snapshot
from errands.runtime.submission import Submission, Submitter
from errands.runtime.validation import own_task

Tasks = list[core.Task]

#: Tasks that `TaskStore.list` reads at a time.
_PAGE = 100


class TaskManager:
    """The operations of one agent: each takes a request and the call behind it, and raises `A2AError`."""

    def __init__(
        self,
        pool: WorkerPool,
        agent: str,
        *,
        input_modes: list[str],
        settings: Settings,
        identifiers: Identifiers | None = None,
    ) -> None:
        handler = pool.handlers[agent]
        self._engine = handler.journal.engine
        #: See `Engine`.
        self.commits_at_once = self._engine.commits_at_once
        self._settings = settings
        self._canceler = Canceler(pool, agent, settings)
        pool.on_expiry(self._canceler.end_abandoned)
        self._guard = push_guard(settings)
        self._submitter = Submitter(pool, agent, input_modes=input_modes, settings=settings, identifiers=identifiers)
        self._streams = Streams(self._engine, settings.keep_alive)

    async def scope_of(self, task_id: str) -> log.Scope | None:
        """Return the scope of a task of any owner, None if it does not exist: for callers who may see all."""
        try:
            return (await self._engine.load(task_id, None)).scope
        except errors.TaskNotFoundError:
            return None

    # SendMessage, SendStreamingMessage

    def send_message(
        self, request: requests.SendMessageRequest, call: CallContext
    ) -> Coroutine[Any, Any, requests.SendMessageResponse]:
        """Submit the message and, unless the client wants to return immediately, wait until its turn has ended."""
        if request.message.task_id:
            return self._send_to_task(request, call)
        return self._send(request, call, self._submitter.new_task_id(request.message))

    async def _send_to_task(
        self, request: requests.SendMessageRequest, call: CallContext
    ) -> requests.SendMessageResponse:
        """Do what `send_message` does for a message that names its task."""
        return await self._send(request, call, request.message.task_id or "")

    async def _send(
        self, request: requests.SendMessageRequest, call: CallContext, task_id: str
    ) -> requests.SendMessageResponse:
        configuration = request.configuration
        # Expected before the message is submitted, so that no change is missed.
        with self._engine.expect(task_id, call.scope, core.SETTLED_STATES) as expectation:
            if request.message.task_id:
                submission = await self._continue(request, call)
            else:
                submission = await self._submitter.submit(request, call, task_id)
            if call.on_accepted is not None:
                call.on_accepted()
            stored = submission.stored
            if configuration is None or not configuration.return_immediately:
                if not submission.settled:
                    if stored.task.id != task_id:
                        settled = await self._wait_elsewhere(submission, call)
                    elif submission.queued:
                        settled = await self._wait(submission, expectation)
                    else:
                        settled = await expectation.wait(stored.head.version, self._settings.blocking_timeout)
                    stored = settled or await self._engine.load(stored.task.id, call.scope)
            elif submission.is_undecided:
                stored = await self._streams.first_published(stored, self._settings.blocking_timeout)
        if stored.head.direct and stored.head.state is core.COMPLETED:
            return requests.SendMessageResponse(message=stored.task.status.message)
        if configuration is None:
            return requests.SendMessageResponse(task=stored.task)
        return requests.SendMessageResponse(task=trim(stored.task, configuration.history_length))

    async def _continue(self, request: requests.SendMessageRequest, call: CallContext) -> Submission:
        """Submit a message to the task that it names."""
        return await self._submitter.submit(request, call, request.message.task_id or "")

    async def _wait_elsewhere(self, submission: Submission, call: CallContext) -> log.StoredTask | None:
        """Wait for a task that existed before: the message was sent before, or answers a task by its context."""
        task_id = submission.stored.task.id
        with self._engine.expect(task_id, call.scope, core.SETTLED_STATES) as expectation:
            submission.stored = await call.load(self._engine, task_id)
            return submission.stored if submission.settled else await self._wait(submission, expectation)

    async def _wait(self, submission: Submission, expectation: Expectation) -> log.StoredTask | None:
        """Return the task once the turn of a queued message has ended; None if the time is up."""
        while True:
            settled = await expectation.wait(submission.stored.version, self._settings.blocking_timeout)
            if settled is None:
                return None
            submission.stored = settled
            if submission.settled:
                return settled

    async def send_streaming_message(self, request: requests.SendMessageRequest, call: CallContext) -> EventStream:
        """Submit the message, and show the task and everything that happens until the turn has ended."""
        if request.message.task_id:
            return await self._stream_to_task(request, call)
        submission = await self._submitter.submit(request, call, self._submitter.new_task_id(request.message))
        return self._follow(submission, request)

    async def _stream_to_task(self, request: requests.SendMessageRequest, call: CallContext) -> EventStream:
        """Do what `send_streaming_message` does for a message that names its task."""
        return self._follow(await self._continue(request, call), request)

    def _follow(self, submission: Submission, request: requests.SendMessageRequest) -> EventStream:
        length = request.configuration.history_length if request.configuration else None
        return self._streams.follow_submission(submission, length)

    # GetTask, ListTasks

    async def get_task(self, request: requests.GetTaskRequest, call: CallContext) -> core.Task:
        """Return the task, with as much of its history as was asked for. Raise `TaskNotFoundError`."""
        return trim((await self._load(request.id, call)).task, request.history_length)

    async def _load(self, task_id: str, call: CallContext) -> log.StoredTask:
        """Return the caller's task as the caller may see it. Raise `TaskNotFoundError`."""
        return await call.load(self._engine, task_id)

    async def list_tasks(self, request: requests.ListTasksRequest, call: CallContext) -> requests.ListTasksResponse:
        """Return one page of the caller's tasks. Raise `InvalidParamsError` for an invalid time or token."""
        after = None
        if request.status_timestamp_after:
            try:
                after = from_iso(request.status_timestamp_after)
            except (ValueError, OverflowError):
                raise errors.InvalidParamsError(
                    "statusTimestampAfter must be an ISO 8601 time such as 2026-01-31T12:00:00Z",
                    field="statusTimestampAfter",
                ) from None
        size = request.page_size or 50
        query = log.ListQuery(
            scope=call.scope,
            reach=call.reach,
            context_id=request.context_id or None,
            state=None if request.status in (None, core.UNSPECIFIED) else request.status,
            status_after=after,
            page_size=size,
            page_token=request.page_token or "",
            with_artifacts=bool(request.include_artifacts),
        )
        page = await call.list(self._engine, query)
        tasks = [trim(stored.task, request.history_length) for stored in page.tasks]
        if request.include_artifacts:
            tasks = [msgspec.structs.replace(task, artifacts=task.artifacts or []) for task in tasks]
        else:
            tasks = [msgspec.structs.replace(task, artifacts=None) for task in tasks]
        return requests.ListTasksResponse(
            tasks=tasks, next_page_token=page.next_page_token, page_size=size, total_size=page.total_size
        )

    # CancelTask

    async def cancel_task(self, request: requests.CancelTaskRequest, call: CallContext) -> core.Task:
        """Cancel a task that does not run at once; ask a running worker, and force it after the grace period."""
        return await self._canceler.cancel(request.id, call)

    # SubscribeToTask

    async def subscribe_to_task(self, request: requests.SubscribeToTaskRequest, call: CallContext) -> EventStream:
        """Show the task and what happens until it has ended; with `Last-Event-ID`, what was missed and what follows."""
        stored = await self._load(request.id, call)
        after = call.last_event_id
        until = core.SETTLED_STATES if call.ends_at_pause else core.TERMINAL_STATES
        if after is not None and after <= stored.version and not stored.damage:
            return self._streams.follow(stored, until, [], after)
        # A client that was cut off learns how a damaged task ended; the log may not say so.
        if stored.state in core.TERMINAL_STATES and (after is None or not stored.damage):
            raise errors.UnsupportedOperationError(
                f"Task is already {stored.state.short}: there is nothing to wait for; get the task instead",
                taskId=request.id,
            )
        return self._streams.follow(stored, until, [snapshot(stored)])

    # CreateTaskPushNotificationConfig, GetTask…, ListTask…, DeleteTask…

    async def create_push_config(
        self, request: requests.TaskPushNotificationConfig, call: CallContext
    ) -> requests.TaskPushNotificationConfig:
        """Register a webhook for the task. One with the same id is replaced.

        Raise `TaskNotFoundError`, `TooManyPushConfigsError`, and `InvalidParamsError` for a webhook that may not be
        called.
        """
        task_id = request.task_id or ""
        await self._engine.push_configs(task_id, call.scope)  # a foreign task is not found, whatever the config is
        config = read_config(request, task_id, call.protocol, self._guard)
        await self._change_configs(task_id, call, push=config)
        return shown_config(config, task_id)

    async def get_push_config(
        self, request: requests.GetTaskPushNotificationConfigRequest, call: CallContext
    ) -> requests.TaskPushNotificationConfig:
        """Return one config of the task. Raise `TaskNotFoundError` for an unknown id."""
        for config in await self._engine.push_configs(request.task_id, call.scope):
            if config.id == request.id:
                return shown_config(config, request.task_id)
        raise errors.TaskNotFoundError("The task has no push notification config of this id", taskId=request.task_id)

    async def list_push_configs(
        self, request: requests.ListTaskPushNotificationConfigsRequest, call: CallContext
    ) -> requests.ListTaskPushNotificationConfigsResponse:
        """Return the configs of the task, by their ids. Raise `TaskNotFoundError`."""
        configs = await self._engine.push_configs(request.task_id, call.scope)
        left = [config for config in configs if config.id > (request.page_token or "")]
        page = left[: request.page_size] if request.page_size else left
        return requests.ListTaskPushNotificationConfigsResponse(
            configs=[shown_config(config, request.task_id) for config in page],
            next_page_token=page[-1].id if len(page) < len(left) else None,
        )

    async def delete_push_config(
        self, request: requests.DeleteTaskPushNotificationConfigRequest, call: CallContext
    ) -> requests.Empty:
        """Delete the webhook. Deleting it twice succeeds. Raise `TaskNotFoundError`."""
        await self._change_configs(request.task_id, call, drop_push=request.id)
        return requests.Empty()

    async def _change_configs(self, task_id: str, call: CallContext, **change: Any) -> None:
        limit = self._settings.push_configs_per_task
        try:
            await self._engine.commit(
                log.Change(task_id=task_id, scope=call.scope, at=self._engine.clock(), push_limit=limit, **change)
            )
        except errors.ConcurrencyError:
            raise errors.TaskNotFoundError(taskId=task_id) from None


class TaskStore:
    """The tasks of one owner, for the program that runs the server: `await server.tasks.list(context_id=...)`.

    What clients see, without HTTP and middleware. All methods return copies.
    """

    def __init__(self, tasks: TaskManager, scope: log.Scope) -> None:
        self._tasks = tasks
        self._scope = scope

    def of(self, owner: str = "", tenant: str = "") -> TaskStore:
        """Return the tasks of another owner. Middleware names owners; "" is those of callers without a name."""
        return TaskStore(self._tasks, self._scope._replace(owner=owner, tenant=tenant))

    async def list(
        self, *, context_id: str | None = None, state: core.TaskState | None = None, limit: int | None = None
    ) -> Tasks:
        """Return all tasks, or those of one context or in one state, the latest change first; at most `limit`."""
        found: Tasks = []
        token = ""
        while limit is None or len(found) < limit:
            page = await self._tasks.list_tasks(
                requests.ListTasksRequest(
                    context_id=context_id,
                    status=state,
                    page_size=_PAGE,
                    page_token=token,
                    include_artifacts=True,
                ),
                self._call,
            )
            found += map(own_task, page.tasks)
            token = page.next_page_token
            if not token:
                break
        return found[:limit]

    async def get(self, task_id: str) -> core.Task:
        """Return one task. Raise `TaskNotFoundError`."""
        return own_task(await self._tasks.get_task(requests.GetTaskRequest(id=task_id), self._call))

    async def cancel(self, task_id: str) -> core.Task:
        """Return the task once it is canceled. Raise `TaskNotFoundError` and `TaskNotCancelableError`."""
        return own_task(await self._tasks.cancel_task(requests.CancelTaskRequest(id=task_id), self._call))

    @property
    def _call(self) -> CallContext:
        return CallContext(self._scope)
