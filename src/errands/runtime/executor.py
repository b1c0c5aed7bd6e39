"""The programming model of the official SDK: `AgentExecutor`, `RequestContext`, `EventQueue` and `TaskUpdater`.

`errands.runtime.executor_worker` runs an executor as a worker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from errands.clock import system_clock, to_iso
from errands.errors import ConfigurationError, InvalidParamsError
from errands.model import core
from errands.model.requests import SendMessageConfiguration, SendMessageRequest
from errands.runtime import validation
from errands.runtime.journal import new_id
from errands.runtime.oversight import CapabilityCall, Overseer

#: Characters of an identifier: stores index tasks by it.
_MAX_ID_LENGTH = 250
#: Tasks that a message refers to and that are loaded for it.
MAX_REFERRED = 100

#: What an executor may publish.
Event = core.Task | core.Message | core.TaskStatusUpdateEvent | core.TaskArtifactUpdateEvent

#: Returns the overseer of the turn in which an executor runs; set by the runtime.
turn_overseer: ContextVar[Callable[[], Overseer]] = ContextVar("turn_overseer")


def _overseen() -> Overseer:
    try:
        return turn_overseer.get()()
    except LookupError:
        raise ConfigurationError(
            "a request that no server executes has no records; test with errands.testing.connect"
        ) from None


async def _no_task(task_id: str) -> core.Task | None:
    return None


# What an executor is given


@dataclass(frozen=True)
class User:
    """The caller, named by middleware. A caller without a name is not authenticated."""

    #: The name that authentication has found; "" without one.
    user_name: str = ""

    @property
    def is_authenticated(self) -> bool:
        """Return whether the caller has a name."""
        return bool(self.user_name)


@dataclass
class ServerCallContext:
    """The call behind a request; every execution has a new one."""

    #: What middleware kept for this request: never stored, empty after a restart.
    state: dict[str, Any] = field(default_factory=dict, repr=False)
    user: User = field(default_factory=User)
    tenant: str = ""
    #: The extensions the client declared.
    requested_extensions: set[str] = field(default_factory=set)
    #: Those of them that the agent's card has.
    activated_extensions: set[str] = field(default_factory=set)
    #: Returns another task of the same caller, or None: `await call_context.get_task(task_id)`.
    get_task: Callable[[str], Awaitable[core.Task | None]] = field(default=_no_task, repr=False)


class RequestContext:
    """One request: the message, its sender, and the task it belongs to.

    Raises `InvalidParamsError` if the identifiers contradict each other. Missing ones are generated.
    """

    #: Which try of this request it is, from 1; more than 1 after a crash.
    attempt: int = 1

    def __init__(
        self,
        call_context: ServerCallContext,
        request: SendMessageRequest | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        task: core.Task | None = None,
        related_tasks: list[core.Task] | None = None,
        task_id_generator: IDGenerator | None = None,
        context_id_generator: IDGenerator | None = None,
    ) -> None:
        if task is not None and task_id and task.id != task_id:
            raise InvalidParamsError(f"The request is about task {task_id}, not {task.id}", field="message.taskId")
        if task is not None and context_id and task.context_id != context_id:
            raise InvalidParamsError(
                f"Task {task.id} belongs to another context than {context_id}", field="message.contextId"
            )
        #: The task as it was when the request came; None when the request is the first of a new task.
        self.current_task: core.Task | None = task
        self._call_context = call_context
        self._related_tasks = list(related_tasks or [])
        if request is not None:
            task_id = task_id or request.message.task_id or generated(task_id_generator, context_id=context_id)
            context_id = context_id or request.message.context_id or generated(context_id_generator, task_id=task_id)
            message = msgspec.structs.replace(request.message, task_id=task_id, context_id=context_id)
            request = msgspec.structs.replace(request, message=message)
        self._request = request
        self._task_id = task_id
        self._context_id = context_id

    @property
    def task_id(self) -> str | None:
        """The identifier of the task; a new task has one, too."""
        return self._task_id

    @property
    def context_id(self) -> str | None:
        """The conversation's identifier."""
        return self._context_id

    @property
    def message(self) -> core.Message | None:
        """The message, with both identifiers filled in."""
        return self._request.message if self._request else None

    @property
    def configuration(self) -> SendMessageConfiguration | None:
        """The sender's wishes about the reply, or None."""
        return self._request.configuration if self._request else None

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the request, beside that of the message."""
        return (self._request.metadata or {}) if self._request else {}

    @property
    def call_context(self) -> ServerCallContext:
        """The call behind the request."""
        return self._call_context

    @property
    def requested_extensions(self) -> set[str]:
        """The extensions the client declared."""
        return self._call_context.requested_extensions

    @property
    def tenant(self) -> str:
        """The tenant the request is for; "" without one."""
        return self._call_context.tenant

    @property
    def related_tasks(self) -> list[core.Task]:
        """Other tasks that are related to this request."""
        return self._related_tasks

    def attach_related_task(self, task: core.Task) -> None:
        """Add a task to `related_tasks`, for example one that was begun to use a tool."""
        self._related_tasks.append(task)

    def get_user_input(self, delimiter: str = "\n") -> str:
        """Return the text parts of the message, joined; "" without any."""
        return core.text_of(self._request.message.parts, delimiter) if self._request else ""

    async def record_llm(self, model: str, *, prompt: int = 0, completion: int = 0, text: str = "") -> None:
        """Record that a model was called; see `TaskContext.record_llm`."""
        await _overseen().record_llm(model, prompt=prompt, completion=completion, text=text)

    def capability(self, name: str, arguments: Mapping[str, Any] | None = None, /, **more: Any) -> CapabilityCall:
        """Return a call of a capability, for `async with`; see `TaskContext.capability`."""
        return _overseen().capability(name, {**(arguments or {}), **more})

    async def policy_context(self) -> dict[str, Any]:
        """Return what expressions of policies see as `context`, as plain JSON."""
        return await _overseen().context()


class RequestContextBuilder(ABC):
    """Builds what an executor is given: `A2AServer(executor=..., request_context_builder=...)`."""

    #: Makes the identifiers of new tasks. None: random UUIDs.
    task_id_generator: IDGenerator | None = None
    #: Makes the identifiers of new contexts. None: random UUIDs.
    context_id_generator: IDGenerator | None = None

    @abstractmethod
    async def build(
        self,
        context: ServerCallContext,
        params: SendMessageRequest | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        task: core.Task | None = None,
    ) -> RequestContext:
        """Return the context of one execution. An exception fails the task."""


class TaskSource(Protocol):
    """Finds the tasks that a message refers to."""

    async def get(self, task_id: str, context: ServerCallContext) -> core.Task | None: ...


class SimpleRequestContextBuilder(RequestContextBuilder):
    """Builds the usual context. With `should_populate_referred_tasks`, `related_tasks` are those the message refers to.

    They are looked up in `task_store`; without one, among the caller's own tasks of this server. Tasks that are
    not found are left out, and so are those beyond the first hundred.
    """

    def __init__(
        self,
        should_populate_referred_tasks: bool = False,
        task_store: TaskSource | None = None,
        task_id_generator: IDGenerator | None = None,
        context_id_generator: IDGenerator | None = None,
    ) -> None:
        self._should_populate_referred_tasks = should_populate_referred_tasks
        self.task_store = task_store
        self.task_id_generator = task_id_generator
        self.context_id_generator = context_id_generator

    async def build(
        self,
        context: ServerCallContext,
        params: SendMessageRequest | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        task: core.Task | None = None,
    ) -> RequestContext:
        related: list[core.Task] = []
        if params and self._should_populate_referred_tasks:
            # A client may name any number of tasks, and one task any number of times.
            for referred in list(dict.fromkeys(params.message.reference_task_ids or []))[:MAX_REFERRED]:
                store = self.task_store
                found = await (context.get_task(referred) if store is None else store.get(referred, context))
                if found is not None:
                    related.append(found)
        return RequestContext(
            context, params, task_id, context_id, task, related, self.task_id_generator, self.context_id_generator
        )


# What an executor writes to


class EventQueue(ABC):
    """Takes the events of an executor into its task's log. It is open while `execute` or `cancel` runs."""

    @abstractmethod
    async def enqueue_event(self, event: Event) -> None:
        """Publish an event; the order of the calls is the order in the log.

        An event that ends the task is durable when this returns. Raises `InvalidAgentResponseError` for an event that
        cannot follow those before it or that belongs to another task; nothing of it is kept and the task fails. Raises
        `TurnError` if the queue is closed, `TaskTerminalStateError` if the task was canceled by force, and
        `LeaseLostError` if another process has taken it over.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Return whether `enqueue_event` would be refused."""

    @abstractmethod
    async def close(self) -> None:
        """Take no more events. The runtime does this when `execute` or `cancel` has returned."""


class TaskUpdater:
    """Publishes the events of one task: `updater = TaskUpdater(event_queue, context.task_id, context.context_id)`.

    A request that is executed has both identifiers. Raises `ValueError` if one is missing.
    """

    def __init__(
        self,
        event_queue: EventQueue,
        task_id: str | None,
        context_id: str | None,
        artifact_id_generator: IDGenerator | None = None,
        message_id_generator: IDGenerator | None = None,
    ) -> None:
        if not task_id or not context_id:
            raise ValueError("updates need the identifiers of a task and its context")
        self.event_queue = event_queue
        self.task_id = task_id
        self.context_id = context_id
        self._artifact_ids = artifact_id_generator
        self._message_ids = message_id_generator
        self._ids = {"task_id": task_id, "context_id": context_id}

    async def update_status(
        self,
        state: core.TaskState,
        message: core.Message | None = None,
        timestamp: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Publish a change of state, or a message about the progress."""
        status = core.TaskStatus(state=state, message=message, timestamp=timestamp or to_iso(system_clock()))
        await self.event_queue.enqueue_event(
            core.TaskStatusUpdateEvent(
                task_id=self.task_id, context_id=self.context_id, status=status, metadata=metadata
            )
        )

    async def add_artifact(
        self,
        parts: list[core.Part],
        artifact_id: str | None = None,
        name: str | None = None,
        metadata: dict[str, Any] | None = None,
        append: bool | None = None,
        last_chunk: bool | None = None,
        extensions: list[str] | None = None,
    ) -> None:
        """Publish an artifact or, with `append`, a further piece of one."""
        artifact = core.Artifact(
            artifact_id=artifact_id or generated(self._artifact_ids, **self._ids),
            parts=parts,
            name=name,
            metadata=metadata,
            extensions=extensions,
        )
        await self.event_queue.enqueue_event(
            core.TaskArtifactUpdateEvent(
                task_id=self.task_id,
                context_id=self.context_id,
                artifact=artifact,
                append=bool(append),
                last_chunk=bool(last_chunk),
            )
        )

    async def submit(self, message: core.Message | None = None) -> None:
        """Publish that the task is accepted and not begun."""
        await self.update_status(core.TaskState.SUBMITTED, message)

    async def start_work(self, message: core.Message | None = None) -> None:
        """Publish that the work begins."""
        await self.update_status(core.TaskState.WORKING, message)

    async def complete(self, message: core.Message | None = None) -> None:
        """Complete the task."""
        await self.update_status(core.TaskState.COMPLETED, message)

    async def failed(self, message: core.Message | None = None) -> None:
        """End the task as failed; `fail` is another name for it."""
        await self.update_status(core.TaskState.FAILED, message)

    fail = failed

    async def reject(self, message: core.Message | None = None) -> None:
        """Decline the task."""
        await self.update_status(core.TaskState.REJECTED, message)

    async def cancel(self, message: core.Message | None = None) -> None:
        """End the task as canceled."""
        await self.update_status(core.TaskState.CANCELED, message)

    async def requires_input(self, message: core.Message | None = None) -> None:
        """Ask the user for input; `execute` should return then."""
        await self.update_status(core.TaskState.INPUT_REQUIRED, message)

    async def requires_auth(self, message: core.Message | None = None) -> None:
        """Ask for credentials; `execute` returns then, or waits until they have come another way."""
        await self.update_status(core.TaskState.AUTH_REQUIRED, message)

    def new_agent_message(self, parts: list[core.Part], metadata: dict[str, Any] | None = None) -> core.Message:
        """Return a message of the agent about this task, without publishing it."""
        return core.Message(
            message_id=generated(self._message_ids, **self._ids),
            role=core.Role.AGENT,
            parts=parts,
            task_id=self.task_id,
            context_id=self.context_id,
            metadata=metadata,
        )


class AgentExecutor(ABC):
    """An agent that publishes events about a request to a queue.

    `execute` is never called twice at a time for one task. An exception that it raises fails the task.
    """

    #: What happens to an execution whose process died: run it again, or fail the task.
    on_interrupted: Literal["redeliver", "fail"] = "redeliver"

    @abstractmethod
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Work on one request and publish the results.

        These are either one `Message`, which is the whole answer, or a `Task` and any number of status and artifact
        updates. Before it returns it publishes a terminal state, or asks for something: after `INPUT_REQUIRED` it
        returns and is called again with the user's answer; after `AUTH_REQUIRED` it may return in the same way, or
        wait for an authentication that happens elsewhere and continue. Once it has returned, the queue is closed.

        A cancel raises `asyncio.CancelledError` here, and then `cancel` is called.
        """

    @abstractmethod
    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Release what the task holds elsewhere. It may publish `CANCELED` with a message.

        The task is canceled when this returns, raises or takes too long, whatever was published before.
        """


# Identifiers


class IDGeneratorContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a new identifier belongs to, as far as it is known."""

    #: The task that the identifier is for.
    task_id: str | None = None
    #: The conversation that it is for.
    context_id: str | None = None


class IDGenerator(ABC):
    """Makes identifiers. Subclass it for another form than UUIDs."""

    @abstractmethod
    def generate(self, context: IDGeneratorContext) -> str:
        """Return an identifier that was never returned before."""


class UUIDGenerator(IDGenerator):
    """Makes random UUIDs."""

    def generate(self, context: IDGeneratorContext) -> str:
        return new_id()


class Identifiers(msgspec.Struct, frozen=True):
    """Makes the identifiers of new tasks and new contexts."""

    tasks: IDGenerator | None = None
    contexts: IDGenerator | None = None

    def new_task(self, context_id: str | None) -> str:
        return generated(self.tasks, context_id=context_id)

    def new_context(self, task_id: str) -> str:
        return generated(self.contexts, task_id=task_id)


def generated(generator: IDGenerator | None, **known: str | None) -> str:
    """Return an identifier that stores can hold; without a generator, a UUID. Raise `TypeError` or `ValueError`."""
    if generator is None:
        return new_id()
    name = f"what {type(generator).__name__}.generate returns"
    identifier = validation.text(name, generator.generate(IDGeneratorContext(**known)))
    if not 0 < len(identifier) <= _MAX_ID_LENGTH or not identifier.isprintable():
        raise ValueError(f"{name} must have 1 to {_MAX_ID_LENGTH} printable characters, not {identifier[:50]!r}")
    return identifier
