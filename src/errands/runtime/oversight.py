"""What the runtime knows of policy: two protocols that `errands.policy.enforcement` implements.

The server gives the pool one `Oversight` for each agent. It makes an `Overseer` for every turn when the agent is held
to a policy, and otherwise only for turns in which the agent records something, so all others pay nothing.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from errands.model.core import StreamResponse, Task
from errands.model.log import EventKind, RequestOptions, StoredTask

if TYPE_CHECKING:
    from errands.runtime.expiry import Expired
    from errands.runtime.turn import Ending, Turn


class CapabilityCall(Protocol):
    """`async with ctx.capability("search", {"query": "tea"}) as call: call.output = await search(**call.arguments)`.

    Entering asks the policy and the limits and makes the beginning durable. Leaving makes the result durable and lets
    the policy change it. An exception in the block is recorded and raised again.
    """

    #: The name by which policies and expressions know the capability.
    name: str
    #: The arguments of the call, which a policy may have changed.
    arguments: dict[str, Any]
    #: The result, any JSON value. After the block it is what the policy made of it.
    output: Any

    def result(self, value: Any) -> Any:
        """Set `output` and return it."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Admitted(NamedTuple):
    """What the agent may see of a turn: its task and the options of the request, as guardrails left them."""

    task: Task
    options: RequestOptions


class Overseer(Protocol):
    """Oversees one turn: what its agent is given, how long it works, what it records and what it shows."""

    async def admit(self, *, is_cancelled: bool) -> Admitted | None:
        """Return what the agent may see, or None when it must not be called.

        The turn has then ended, unless it is canceled: an agent hears of a cancel only if it was admitted before.
        """

    async def supervise(self, handling: Coroutine[Any, Any, None]) -> None:
        """Run the handler for as long as the limits allow, and end the task when it takes longer."""

    def hold_back(self, kind: EventKind, update: StreamResponse) -> bool:
        """Return whether the event was taken, to be emitted later as approved or not at all."""

    def end(self, ending: Ending) -> Coroutine[Any, Any, None]:
        """Have the turn `finish`, in this way or another."""

    async def record_llm(self, model: str, *, prompt: int = 0, completion: int = 0, text: str = "") -> None:
        """Record a call of a model. Raises `TaskStoppedError` when a limit is exceeded by it."""

    def capability(self, name: str, arguments: Mapping[str, Any]) -> CapabilityCall:
        """Return a call of a capability, which is made by `async with`."""

    async def context(self) -> dict[str, Any]:
        """Return a copy of what expressions see as `context`."""


class Oversight(Protocol):
    """Makes the overseers of one agent's turns."""

    #: Whether every turn has an overseer.
    is_required: bool
    #: The age in milliseconds that tasks of the agent may reach, or None.
    max_age: int | None

    def expire(self, stored: StoredTask, now: int) -> Expired:
        """Return how a paused task ends that has become older than `max_age`."""

    def oversee(self, turn: Turn) -> Overseer:
        """Return the overseer of a turn. Call it in the asyncio task of the turn."""
