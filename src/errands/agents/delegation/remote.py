"""Delegation to an A2A agent anywhere, by its address.

The message's id follows from the parent and the call: when it had to be sent again after a crash, an agent that
recognises repeated messages, as errands does, takes the work on once. From the child's id on nothing is sent again; the
parent only asks how far the child is. The message says how often the work has been handed down.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext, suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import msgspec

from errands.agents.delegation.base import Delegate, Delegated, DelegationError, Errand
from errands.agents.delegation.local import MAX_DEPTH, check_depth, first_message
from errands.agents.delegation.outcome import outcome, output_of
from errands.agents.delegation.unbroken import Cancels, unbroken
from errands.agents.tools.toolbox import Secrets
from errands.client import A2AClient, A2AClientError, ClientResult, NoCommonProtocolError
from errands.errors import ErrandsError, TaskNotCancelableError, TaskNotFoundError, UnavailableError
from errands.model.core import Message, Task
from errands.model.log import Scope
from errands.model.marks import is_review
from errands.runtime.inner import InnerAgents
from errands.runtime.submission import DELEGATION_DEPTH

logger = logging.getLogger(__name__)

#: Seconds for which an agent that has begun may be out of reach, for example because it is being restarted.
PATIENCE = 60.0
#: Seconds between two looks at an agent that does not stream; they grow from the first to the second.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
#: Characters of a credential at least.
_SHORTEST = 6
#: Not gRPC, whose connections the guard of the HTTP client does not see.
_PROTOCOLS = ("jsonrpc", "http+json")


class RemoteDelegate(Delegate):
    """`headers` are the operator's and go to that agent only. `http` makes the client that it is reached with.

    `agents` are those of this server, whose turns give their slots back while they wait.
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
        self._cancels = Cancels()

    async def run(self, errand: Errand) -> Delegated:
        try:
            delegated = await self._run(errand)
        except DelegationError as error:
            raise DelegationError(self._secrets.hide_in(str(error)), error.task_id) from None
        return msgspec.structs.replace(delegated, output=self._secrets.hide(delegated.output))

    async def _run(self, errand: Errand) -> Delegated:
        check_depth(errand, self._max_depth)
        async with nullcontext() if self._agents is None else self._agents.waiting(errand.parent):
            task_id = errand.task_id
            if task_id is None:
                answered = await unbroken(self._begin(errand))
                if isinstance(answered, Delegated):
                    return answered
                task_id = answered
            return Delegated(task_id=task_id, output=await self._output(task_id))

    async def _begin(self, errand: Errand) -> Delegated | str:
        """Sends the message: the child's id, or the whole answer of an agent that made no task of it."""
        result = await self._send(errand)
        if result.raw_message is not None:
            return Delegated(task_id=result.task_id, output=output_of(result.raw_message.parts))
        await errand.began(result.task_id)
        return result.task_id

    async def _send(self, errand: Errand) -> ClientResult:
        try:
            async with self._connected() as client:
                return await client.send(_message(errand), blocking=False)
        except ErrandsError as error:
            raise DelegationError(f"{self._name} could not be asked: {error}") from None

    async def _output(self, task_id: str) -> dict[str, Any]:
        """Waits for the child over as many connections as it takes."""
        give_up_at: float | None = None
        while True:
            try:
                async with self._connected() as client, aclosing(_states(client, task_id)) as states:
                    async for task in states:
                        give_up_at = None
                        output = outcome(task, self._name, is_reviewed=_is_reviewed(task))
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
                raise DelegationError(f"{self._name} does not say how far it is: {error}", task_id) from None

    async def cancel_errand(self, errand: Errand) -> None:
        """The message is sent again, which finds the child that nobody has noted, or begins what is canceled then."""
        await self._cancels.wait_for(self._cancel_errand(errand))

    async def _cancel_errand(self, errand: Errand) -> None:
        try:
            result = await self._send(errand)
        except DelegationError as error:
            told = self._secrets.hide_in(str(error))
            logger.warning("what %s may do for task %s could not be canceled: %s", self._name, errand.parent, told)
            return
        # The child is not noted any more: the turn that could do it may be over.
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
            told = self._secrets.hide_in(str(error))
            logger.warning("task %s of %s could not be canceled: %s", task_id, self._name, told)

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


def _message(errand: Errand) -> Message:
    return msgspec.structs.replace(first_message(errand), metadata={DELEGATION_DEPTH: errand.depth})


def _secrets(url: str, headers: Mapping[str, str]) -> list[str]:
    """What only the operator and that agent know: of the address what is no place, and credentials."""
    parts = urlsplit(url)
    userinfo, at, _ = parts.netloc.rpartition("@")
    sent = [word for value in headers.values() for word in (value, value.rpartition(" ")[2])]
    # A header such as a version is no credential, and would be missed in what the agent says.
    credentials = [word for word in sent if len(word) >= _SHORTEST]
    return [f"{userinfo}{at}", userinfo, unquote(parts.password or ""), parts.query, *credentials]


def _is_reviewed(task: Task) -> bool:
    """Whether another errands says that it waits for somebody's review."""
    said = task.status.message
    return said is not None and is_review(said)


async def _states(client: A2AClient, task_id: str) -> AsyncGenerator[Task, None]:
    """The task as it stands, and again whenever it may have settled."""
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
