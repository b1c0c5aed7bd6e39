"""`RequestContext`: what an executor is told about its request, and who puts that together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from errands.errors import ConfigurationError, InvalidParamsError
from errands.model.core import Message, Task, text_of
from errands.model.requests import SendMessageConfiguration, SendMessageRequest
from errands.runtime.executor.call import ServerCallContext
from errands.runtime.executor.ids import IDGenerator, IDGeneratorContext, UUIDGenerator, generated
from errands.runtime.oversight import CapabilityCall, Overseer

#: Tasks that a message may refer to and that are loaded for it.
MOST_REFERRED = 100


#: Returns the overseer of the turn in which an executor runs; set by the runtime.
turn_overseer: ContextVar[Callable[[], Overseer]] = ContextVar("turn_overseer")


def _overseen() -> Overseer:
    try:
        return turn_overseer.get()()
    except LookupError:
        raise ConfigurationError(
            "a request that no server executes has no records; test with errands.testing.connect"
        ) from None


class RequestContext:
    """One request: the message, whose it is, and the task it belongs to.

    Raises `InvalidParamsError` when the identifiers contradict each other; those that are missing are made.
    """

    #: Which try of this request it is, from 1; more than 1 after a crash.
    attempt: int = 1

    def __init__(
        self,
        call_context: ServerCallContext,
        request: SendMessageRequest | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        task: Task | None = None,
        related_tasks: list[Task] | None = None,
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
        self.current_task: Task | None = task
        self._call_context = call_context
        self._related_tasks = list(related_tasks or [])
        if request is not None:
            task_id = task_id or request.message.task_id or _generated(task_id_generator, context_id=context_id)
            context_id = context_id or request.message.context_id or _generated(context_id_generator, task_id=task_id)
            message = msgspec.structs.replace(request.message, task_id=task_id, context_id=context_id)
            request = msgspec.structs.replace(request, message=message)
        self._request = request
        self._task_id = task_id
        self._context_id = context_id

    @property
    def task_id(self) -> str | None:
        """The task's identifier, that of a new task included."""
        return self._task_id

    @property
    def context_id(self) -> str | None:
        """The conversation's identifier."""
        return self._context_id

    @property
    def message(self) -> Message | None:
        """The message that came, with both identifiers filled in."""
        return self._request.message if self._request else None

    @property
    def configuration(self) -> SendMessageConfiguration | None:
        """What the sender asked for about the answer, or None."""
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
    def related_tasks(self) -> list[Task]:
        """Other tasks this request has to do with."""
        return self._related_tasks

    def attach_related_task(self, task: Task) -> None:
        """Adds a task to `related_tasks`, such as one that was begun to use a tool."""
        self._related_tasks.append(task)

    def get_user_input(self, delimiter: str = "\n") -> str:
        """The text parts of the message, joined; "" without any."""
        return text_of(self._request.message.parts, delimiter) if self._request else ""

    async def record_llm(self, model: str, *, prompt: int = 0, completion: int = 0, text: str = "") -> None:
        """Tells that a model was called; see `TaskContext.record_llm`."""
        await _overseen().record_llm(model, prompt=prompt, completion=completion, text=text)

    def capability(self, name: str, arguments: Mapping[str, Any] | None = None, /, **more: Any) -> CapabilityCall:
        """A call of a capability, for `async with`; see `TaskContext.capability`."""
        return _overseen().capability(name, {**(arguments or {}), **more})

    async def policy_context(self) -> dict[str, Any]:
        """What expressions of policies see as `context`, as plain JSON."""
        return await _overseen().context()


def _generated(generator: IDGenerator | None, **known: str | None) -> str:
    return generated(generator or UUIDGenerator(), IDGeneratorContext(**known))


class RequestContextBuilder(ABC):
    """Puts together what an executor is given: `A2AServer(executor=..., request_context_builder=...)`."""

    #: Where the identifiers of new tasks and new contexts come from; None: random UUIDs.
    task_id_generator: IDGenerator | None = None
    context_id_generator: IDGenerator | None = None

    @abstractmethod
    async def build(
        self,
        context: ServerCallContext,
        params: SendMessageRequest | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        task: Task | None = None,
    ) -> RequestContext:
        """The context of one execution; an exception fails the task."""


class TaskSource(Protocol):
    """Where a builder finds the tasks that a message refers to."""

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None: ...


class SimpleRequestContextBuilder(RequestContextBuilder):
    """The usual context; with `should_populate_referred_tasks`, `related_tasks` are those the message refers to.

    They are looked for in `task_store`; without one, among the caller's own tasks of this server. Tasks that are
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
        task: Task | None = None,
    ) -> RequestContext:
        related = await self._referred(context, params) if params and self._should_populate_referred_tasks else []
        return RequestContext(
            context, params, task_id, context_id, task, related, self.task_id_generator, self.context_id_generator
        )

    async def _referred(self, context: ServerCallContext, params: SendMessageRequest) -> list[Task]:
        found = []
        # A client may name any number of tasks, and one task any number of times.
        for task_id in list(dict.fromkeys(params.message.reference_task_ids or []))[:MOST_REFERRED]:
            if self.task_store is not None:
                task = await self.task_store.get(task_id, context)
            else:
                task = await context.get_task(task_id)
            if task is not None:
                found.append(task)
        return found
