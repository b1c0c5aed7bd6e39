"""Delegation: an agent hands work to another agent, which does it in a task of its own.

    Delegate         the other agent, as the one that delegates sees it
    LocalDelegate    an agent of the same server
    RemoteDelegate   an A2A agent anywhere, by its address

Delegating twice is safe. The parent task and the call determine the id of a local child and the id of the message to a
remote one, so a turn that runs again after a crash finds the child that its first try began.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext, suppress
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import httpx
import msgspec

from errands.agents.exposed import INCOMPLETE, exposed_values, incomplete_reason
from errands.agents.tools.toolbox import Secrets
from errands.client import (
    A2AClient,
    A2AClientError,
    AnswerLostError,
    ClientResult,
    NoCommonProtocolError,
    ProtocolError,
)
from errands.errors import ErrandsError, TaskNotCancelableError, TaskNotFoundError, UnavailableError
from errands.model.core import (
    AUTH_REQUIRED,
    COMPLETED,
    INPUT_REQUIRED,
    TERMINAL_STATES,
    Message,
    Part,
    Role,
    Task,
    text_of,
)
from errands.model.log import Scope
from errands.model.marks import is_review
from errands.outbound import AnswerTooLargeError
from errands.policy.run import content_part
from errands.runtime.call import CallContext
from errands.runtime.inner import InnerAgents
from errands.runtime.submission import DELEGATION_DEPTH

logger = logging.getLogger(__name__)

#: How many agents may delegate, one to the next.
MAX_DEPTH = 5
#: Seconds for which an agent that has begun may be out of reach, for example because it is being restarted.
PATIENCE = 60.0
#: Seconds between two requests to an agent that does not stream; they grow from the first to the second.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
#: Characters that a credential has at least.
_SHORTEST = 6
#: Not gRPC, whose connections the guard of the HTTP client does not see.
_PROTOCOLS = ("jsonrpc", "http+json")
_CHILDREN = uuid.UUID("5b0c2f3e-6d0f-4c39-9f5b-6a3f3d9a7c11")
_ENDINGS = {"failed": "failed", "rejected": "refused", "canceled": "was canceled"}

T = TypeVar("T")


class DelegationError(ErrandsError):
    """The other agent failed, refused or cannot be reached. The model is told so."""

    def __init__(self, message: str, task_id: str | None = None) -> None:
        super().__init__(message)
        #: The child task, if it was created.
        self.task_id = task_id


class Delegation(msgspec.Struct, frozen=True, kw_only=True):
    """What the other agent is to do."""

    #: The same after a crash, so that the work is begun once.
    call: str
    message: str
    #: The other agent's parameters, as the parent's bindings give them.
    parameters: dict[str, Any] = {}
    parent: str
    #: The scope of the parent task, whose owner the child belongs to.
    scope: Scope
    #: The e-mail address of the owner, if it is known.
    email: str = ""
    #: How many agents have delegated above the child.
    depth: int
    #: The child task, if it had been begun before a crash.
    task_id: str | None = None
    #: Called with the child's id as soon as there is one. The id is durable when this returns.
    began: Callable[[str], Awaitable[None]]


class Delegated(msgspec.Struct, frozen=True, kw_only=True):
    """The child task and its output, which is a message and the values that the agent exposes."""

    task_id: str
    output: dict[str, Any]


class Delegate(ABC):
    """Another agent, as one that delegates to it sees it."""

    @abstractmethod
    async def run(self, delegation: Delegation) -> Delegated:
        """Wait until the child has answered. Raises `DelegationError`.

        When this is canceled the child goes on, because the parent may only have been interrupted; see `cancel`.
        """

    @abstractmethod
    async def cancel_delegation(self, delegation: Delegation) -> None:
        """Cancel the child of a parent that was canceled after a crash, if there is one: it was not recorded."""

    @abstractmethod
    async def cancel(self, task_id: str, scope: Scope) -> None:
        """Cancel a child whose parent was canceled. A child that has ended stays as it is."""


# Local agents


class LocalDelegate(Delegate):
    """An agent of this server. Its task is on the same store, so that any process may work on it."""

    def __init__(self, agent: str, agents: InnerAgents, *, max_depth: int = MAX_DEPTH) -> None:
        self._agent = agent
        self._agents = agents
        self._max_depth = max_depth
        self._cancels = _Cancels()

    async def run(self, delegation: Delegation) -> Delegated:
        _check_depth(delegation, self._max_depth)
        call = CallContext(
            scope=delegation.scope._replace(agent=self._agent),
            email=delegation.email,
            parent=delegation.parent,
            depth=delegation.depth,
        )
        async with self._agents.waiting(delegation.parent, is_local=True):
            task_id = delegation.task_id
            if task_id is None:
                # A child that is not recorded would not be canceled with its parent.
                task_id = await _uninterrupted(self._begin(delegation, call))
            return Delegated(task_id=task_id, output=await self._output(task_id, call))

    async def _begin(self, delegation: Delegation, call: CallContext) -> str:
        task_id = child_id(delegation.parent, delegation.call)
        await self._agents.begin(first_message(delegation), call, task_id)
        await delegation.began(task_id)
        return task_id

    async def _output(self, task_id: str, call: CallContext) -> dict[str, Any]:
        version = 0
        while True:
            try:
                stored = await self._agents.wait_until_settled(task_id, call, after=version)
            except TaskNotFoundError:
                raise DelegationError(f"the task of {self._agent} is no longer there", task_id) from None
            output = outcome(stored.task, self._agent, is_reviewed=bool(stored.head.asks))
            if output is not None:
                return output
            version = stored.version

    async def cancel_delegation(self, delegation: Delegation) -> None:
        await self.cancel(child_id(delegation.parent, delegation.call), delegation.scope)

    async def cancel(self, task_id: str, scope: Scope) -> None:
        await self._cancels.wait_for(self._cancel(task_id, scope))

    async def _cancel(self, task_id: str, scope: Scope) -> None:
        call = CallContext(scope=scope._replace(agent=self._agent))
        with suppress(TaskNotCancelableError, TaskNotFoundError):
            await self._agents.cancel(task_id, call)


# Remote agents


class RemoteDelegate(Delegate):
    """An A2A agent anywhere. From the child's id on nothing is sent again; the parent only asks for its state.

    `headers` are the operator's and go to that agent only. `http` makes the client with which it is reached. `agents`
    are those of this server, whose turns give their slots back while they wait.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        http: Callable[[], httpx.AsyncClient] = httpx.AsyncClient,
        max_depth: int = MAX_DEPTH,
        patience: float = PATIENCE,
        agents: InnerAgents | None = None,
    ) -> None:
        self._name = name
        self._url = url
        self._headers = dict(headers or {})
        self._http = http
        self._max_depth = max_depth
        self._patience = patience
        self._agents = agents
        self._secrets = Secrets(_secrets(url, self._headers))
        self._cancels = _Cancels()

    async def run(self, delegation: Delegation) -> Delegated:
        try:
            delegated = await self._run(delegation)
        except DelegationError as error:
            raise DelegationError(self._secrets.hide_in(str(error)), error.task_id) from None
        return msgspec.structs.replace(delegated, output=self._secrets.hide(delegated.output))

    async def _run(self, delegation: Delegation) -> Delegated:
        _check_depth(delegation, self._max_depth)
        agents = self._agents
        async with nullcontext() if agents is None else agents.waiting(delegation.parent, is_local=False):
            task_id = delegation.task_id
            if task_id is None:
                answered = await _uninterrupted(self._begin(delegation))
                if isinstance(answered, Delegated):
                    return answered
                task_id = answered
            return Delegated(task_id=task_id, output=await self._output(task_id))

    async def _begin(self, delegation: Delegation) -> Delegated | str:
        """Send the message. Return the child's id, or the whole answer of an agent that created no task."""
        result = await self._send(delegation)
        if result.raw_message is not None:
            return Delegated(task_id=result.task_id, output=output_of(result.raw_message.parts))
        await delegation.began(result.task_id)
        return result.task_id

    async def _send(self, delegation: Delegation) -> ClientResult:
        try:
            async with self._connected() as client:
                try:
                    return await client.send(remote_message(delegation), blocking=False)
                except (AnswerLostError, AnswerTooLargeError, ProtocolError) as error:
                    raise DelegationError(f"{self._name} was asked, but there is no usable answer: {error}") from None
        except DelegationError:
            raise
        except ErrandsError as error:
            raise DelegationError(f"{self._name} could not be asked: {error}") from None

    async def _output(self, task_id: str) -> dict[str, Any]:
        """Wait for the child, over as many connections as it takes."""
        give_up_at: float | None = None
        while True:
            try:
                async with self._connected() as client, aclosing(_states(client, task_id)) as states:
                    async for task in states:
                        give_up_at = None
                        said = task.status.message
                        is_reviewed = said is not None and is_review(said)
                        output = outcome(task, self._name, is_reviewed=is_reviewed)
                        if output is not None:
                            return output
            except TaskNotFoundError:
                raise DelegationError(f"{self._name} no longer has the task", task_id) from None
            except (A2AClientError, UnavailableError) as error:
                now = time.monotonic()
                give_up_at = give_up_at or now + self._patience
                if now >= give_up_at:
                    raise DelegationError(f"{self._name} cannot be reached any more: {error}", task_id) from None
                await asyncio.sleep(min(_LONGEST_PAUSE, self._patience / 10))
            except DelegationError:
                raise
            except ErrandsError as error:
                raise DelegationError(f"{self._name} does not report the state of its task: {error}", task_id) from None

    async def cancel_delegation(self, delegation: Delegation) -> None:
        """See `Delegate`. The message is sent again: that finds the child, or begins one that is canceled at once."""
        await self._cancels.wait_for(self._cancel_delegation(delegation))

    async def _cancel_delegation(self, delegation: Delegation) -> None:
        try:
            result = await self._send(delegation)
        except DelegationError as error:
            problem = self._secrets.hide_in(str(error))
            logger.warning(
                "the child of task %s at %s could not be canceled: %s", delegation.parent, self._name, problem
            )
            return
        # The child is not recorded: the turn that could do it may be over.
        if result.raw_message is None:
            await self._cancel(result.task_id)

    async def cancel(self, task_id: str, scope: Scope) -> None:
        await self._cancels.wait_for(self._cancel(task_id))

    async def _cancel(self, task_id: str) -> None:
        try:
            async with self._connected() as client:
                await client.cancel(task_id)
        except (TaskNotCancelableError, TaskNotFoundError):
            pass
        except ErrandsError as error:
            problem = self._secrets.hide_in(str(error))
            logger.warning("task %s of %s could not be canceled: %s", task_id, self._name, problem)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[A2AClient]:
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(self._http())
            for protocol in _PROTOCOLS:
                client = A2AClient(self._url, headers=self._headers, protocol=protocol, httpx_client=http)
                with suppress(NoCommonProtocolError):
                    await stack.enter_async_context(client)
                    break
            else:
                raise DelegationError(f"{self._name} speaks A2A neither as JSON-RPC nor as HTTP+JSON")
            yield client


def remote_message(delegation: Delegation) -> Message:
    """Return the message to a remote child, which says how often the work has been delegated."""
    return msgspec.structs.replace(first_message(delegation), metadata={DELEGATION_DEPTH: delegation.depth})


def _secrets(url: str, headers: Mapping[str, str]) -> list[str]:
    """Return what only the operator and that agent know: credentials, and the query of the address."""
    parts = urlsplit(url)
    userinfo, at, _ = parts.netloc.rpartition("@")
    sent = [word for value in headers.values() for word in (value, value.rpartition(" ")[2])]
    # A short header, such as a version, is not a credential, and hiding it would garble what the agent says.
    credentials = [word for word in sent if len(word) >= _SHORTEST]
    return [f"{userinfo}{at}", userinfo, unquote(parts.password or ""), parts.query, *credentials]


async def _states(client: A2AClient, task_id: str) -> AsyncGenerator[Task, None]:
    """Yield the task as it is, and again whenever it may have settled."""
    pause = _FIRST_PAUSE
    while True:
        result = await client.get_task(task_id, history_length=0)
        assert result.raw_task is not None
        yield result.raw_task
        if client.capabilities.streaming and not result.input_required:
            async with aclosing(client.subscribe(task_id)) as events:
                async for event in events:
                    if event.kind != "artifact" and event.is_final:
                        break
        else:
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


# Both


def _check_depth(delegation: Delegation, max_depth: int) -> None:
    """Raise `DelegationError` when work has been delegated too often."""
    if delegation.depth > max_depth:
        raise DelegationError(
            f"this work has been delegated {max_depth} times, which is the limit; do it without the agent"
        )


def child_id(parent: str, call: str) -> str:
    """Return the id of a local child, which is the same for the same call of the same parent."""
    return str(uuid.uuid5(_CHILDREN, f"{parent}\n{call}"))


def first_message(delegation: Delegation) -> Message:
    """Return the message to the child: the text, its parameters as data, and a reference to the parent."""
    parts = [Part(text=delegation.message)]
    if delegation.parameters:
        parts.append(Part(data=delegation.parameters, media_type="application/json"))
    return Message(
        message_id=str(uuid.uuid5(_CHILDREN, f"message\n{delegation.parent}\n{delegation.call}")),
        role=Role.USER,
        parts=parts,
        reference_task_ids=[delegation.parent],
    )


def outcome(task: Task, agent: str, *, is_reviewed: bool) -> dict[str, Any] | None:
    """Return the output of a child: `message` and what it exposes. None while it goes on or waits for a review.

    A question to the parent is an output. An answer that is not complete says why, as `incomplete`. Raises
    `DelegationError`.
    """
    state, said = task.status.state, task.status.message
    reason = incomplete_reason(said)
    cut = {INCOMPLETE: reason} if reason else {}
    if state is COMPLETED:
        return {**cut, **output_of(said.parts if said else [], task)}
    if state in TERMINAL_STATES:
        raise DelegationError(_with_reason(f"{agent} {_ENDINGS.get(state.short, 'ended')}", said), task.id)
    if state is AUTH_REQUIRED:
        problem = f"{agent} needs an authorization that only a person can give"
        raise DelegationError(_with_reason(problem, said), task.id)
    if state is INPUT_REQUIRED and not is_reviewed:
        return {**cut, **output_of(said.parts if said else [])}
    return None


def output_of(said: list[Part], task: Task | None = None) -> dict[str, Any]:
    """Return what was said, artifacts that say something else, and the values that the agent exposes."""
    exposed: dict[str, Any] = {}
    message: list[dict[str, Any]] = []
    artifacts = (task.artifacts or []) if task else []
    for part in (*said, *(part for artifact in artifacts for part in artifact.parts)):
        if (values := exposed_values(part)) is not None:
            exposed |= values
        # A text that was streamed as an artifact is usually the answer, too.
        elif (content := content_part(part)) not in message:
            message.append(content)
    return {**exposed, "message": message}


def _with_reason(what: str, said: Message | None) -> str:
    text = text_of(said.parts).strip() if said else ""
    return f"{what}: {text}" if text else what


async def _uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, which is completed even if the caller is canceled meanwhile.

    So a child is never begun without being recorded.
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()
        raise


class _Cancels:
    """Cancels of children, which go on when the parent has no time left to wait for them."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[None]] = set()

    async def wait_for(self, canceling: Coroutine[Any, Any, None]) -> None:
        running = asyncio.ensure_future(canceling)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        await asyncio.shield(running)
