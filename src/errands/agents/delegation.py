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
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext, suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import msgspec

from errands.agents.tools.toolbox import Secrets
from errands.client import A2AClient, A2AClientError, AnswerLostError, NoCommonProtocolError, ProtocolError
from errands.errors import ErrandsError, TaskNotCancelableError, TaskNotFoundError, UnavailableError
from errands.model import core
from errands.model.core import Message, Part, Role, Task, text_of
from errands.model.log import Scope
from errands.model.marks import INCOMPLETE, exposed_values, incomplete_reason, is_review
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


class DelegationError(ErrandsError):
    """The other agent failed, refused or cannot be reached. The model is given the message."""

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

        When this is canceled the child continues, because the parent may only have been interrupted; see `cancel`.
        """

    @abstractmethod
    async def cancel(self, delegation: Delegation) -> None:
        """Cancel the child of a parent that was canceled, even if a crash kept it from being recorded.

        A child that has ended stays as it is.
        """


class _TaskDelegate(Delegate):
    """An agent that does the work in a task of its own."""

    def __init__(self, name: str, agents: InnerAgents | None, *, is_local: bool, max_depth: int) -> None:
        self._name = name
        self._agents = agents
        self._is_local = is_local
        self._max_depth = max_depth
        #: They continue when the parent has no time left to wait for them.
        self._canceling: set[asyncio.Future[None]] = set()

    async def run(self, delegation: Delegation) -> Delegated:
        if delegation.depth > self._max_depth:
            raise DelegationError(
                f"this work has been delegated {self._max_depth} times, which is the limit; do it without the agent"
            )
        agents, parent = self._agents, delegation.parent
        async with agents.waiting(parent, is_local=self._is_local) if agents is not None else nullcontext():
            begun: str | Delegated | None = delegation.task_id
            if begun is None:
                beginning = asyncio.ensure_future(self._begin(delegation))
                try:
                    begun = await asyncio.shield(beginning)
                except asyncio.CancelledError:
                    # A child that is begun and not recorded would not be canceled with its parent.
                    await asyncio.wait([beginning])
                    if not beginning.cancelled():
                        beginning.exception()
                    raise
            if isinstance(begun, Delegated):
                return begun
            return Delegated(task_id=begun, output=await self._output(begun, delegation))

    async def cancel(self, delegation: Delegation) -> None:
        running = asyncio.ensure_future(self._cancel(delegation))
        self._canceling.add(running)
        running.add_done_callback(self._canceling.discard)
        await asyncio.shield(running)

    @abstractmethod
    async def _begin(self, delegation: Delegation) -> str | Delegated:
        """Begin the child. Return its id, which is recorded then, or the whole answer of an agent without tasks."""

    @abstractmethod
    async def _output(self, task_id: str, delegation: Delegation) -> dict[str, Any]:
        """Wait for the output of the child."""

    @abstractmethod
    async def _cancel(self, delegation: Delegation) -> None:
        """Cancel the child; errors that are expected are logged."""


class LocalDelegate(_TaskDelegate):
    """An agent of this server. Its task is on the same store, so that any process may work on it."""

    def __init__(self, agent: str, agents: InnerAgents, *, max_depth: int = MAX_DEPTH) -> None:
        super().__init__(agent, agents, is_local=True, max_depth=max_depth)
        self._inner = agents

    def _call(self, delegation: Delegation) -> CallContext:
        scope = delegation.scope._replace(agent=self._name)
        return CallContext(scope=scope, email=delegation.email, parent=delegation.parent, depth=delegation.depth)

    async def _begin(self, delegation: Delegation) -> str:
        task_id = child_id(delegation.parent, delegation.call)
        await self._inner.begin(first_message(delegation), self._call(delegation), task_id)
        await delegation.began(task_id)
        return task_id

    async def _output(self, task_id: str, delegation: Delegation) -> dict[str, Any]:
        version = 0
        while True:
            try:
                stored = await self._inner.wait_until_settled(task_id, self._call(delegation), after=version)
            except TaskNotFoundError:
                raise DelegationError(f"the task of {self._name} is no longer there", task_id) from None
            output = outcome(stored.task, self._name, is_reviewed=bool(stored.head.asks))
            if output is not None:
                return output
            version = stored.version

    async def _cancel(self, delegation: Delegation) -> None:
        task_id = delegation.task_id or child_id(delegation.parent, delegation.call)
        call = CallContext(scope=delegation.scope._replace(agent=self._name))
        with suppress(TaskNotCancelableError, TaskNotFoundError):
            await self._inner.cancel(task_id, call)


class RemoteDelegate(_TaskDelegate):
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
        super().__init__(name, agents, is_local=False, max_depth=max_depth)
        self._url = url
        self._headers = dict(headers or {})
        self._http = http
        self._patience = patience
        self._secrets = Secrets(_secrets(url, self._headers))

    async def run(self, delegation: Delegation) -> Delegated:
        try:
            delegated = await super().run(delegation)
        except DelegationError as error:
            raise DelegationError(self._secrets.hide_in(str(error)), error.task_id) from None
        return msgspec.structs.replace(delegated, output=self._secrets.hide(delegated.output))

    async def _begin(self, delegation: Delegation) -> str | Delegated:
        begun = await self._send(delegation)
        if isinstance(begun, str):
            await delegation.began(begun)
        return begun

    async def _send(self, delegation: Delegation) -> str | Delegated:
        try:
            async with self._connected() as client:
                try:
                    result = await client.send(remote_message(delegation), blocking=False)
                except (AnswerLostError, AnswerTooLargeError, ProtocolError) as error:
                    raise DelegationError(f"{self._name} was asked, but gave no usable answer: {error}") from None
        except DelegationError:
            raise
        except ErrandsError as error:
            raise DelegationError(f"{self._name} could not be asked: {error}") from None
        if result.raw_message is None:
            return result.task_id
        return Delegated(task_id=result.task_id, output=output_of(result.raw_message.parts))

    async def _output(self, task_id: str, delegation: Delegation) -> dict[str, Any]:
        """Wait for the child, over as many connections as it takes."""
        give_up_at: float | None = None
        while True:
            try:
                async with self._connected() as client, aclosing(_states(client, task_id)) as states:
                    async for task in states:
                        give_up_at = None
                        said = task.status.message
                        output = outcome(task, self._name, is_reviewed=said is not None and is_review(said))
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

    async def _cancel(self, delegation: Delegation) -> None:
        try:
            # Sending the message again finds a child that was not recorded, or begins one that is canceled at once.
            begun = delegation.task_id or await self._send(delegation)
            if isinstance(begun, str):
                async with self._connected() as client:
                    await client.cancel(begun)
        except (TaskNotCancelableError, TaskNotFoundError):
            pass
        except ErrandsError as error:
            problem = self._secrets.hide_in(str(error))
            logger.warning(
                "the child of task %s at %s could not be canceled: %s", delegation.parent, self._name, problem
            )

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
    """Return the output of a child: `message` and what it exposes. None while it continues or waits for a review.

    A question to the parent is an output. An answer that is not complete says why, as `incomplete`. Raises
    `DelegationError`.
    """
    state, said = task.status.state, task.status.message
    reason = incomplete_reason(said)
    cut = {INCOMPLETE: reason} if reason else {}
    if state is core.COMPLETED:
        return {**cut, **output_of(said.parts if said else [], task)}
    if state in core.TERMINAL_STATES:
        raise DelegationError(_with_reason(f"{agent} {_ENDINGS.get(state.short, 'ended')}", said), task.id)
    if state is core.AUTH_REQUIRED:
        problem = f"{agent} needs an authorization that only a person can give"
        raise DelegationError(_with_reason(problem, said), task.id)
    if state is core.INPUT_REQUIRED and not is_reviewed:
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
