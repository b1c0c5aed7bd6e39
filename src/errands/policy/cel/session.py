"""Calls that an expression makes and somebody else performs: noted, waited for, and replayed.

The engine cannot wait. So a function that has no result yet notes its call and stops the evaluation; the call is
performed, its result goes into the session, and the expression is evaluated again. It finds the result under the
function, its arguments and how many equal calls came before. A session is plain JSON: it can be stored while a review
takes days, and a finished call is never made twice.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import msgspec

from errands.policy.cel.errors import CallFailed, Suspended
from errands.policy.cel.values import Json, arguments_plain, normalise

#: One evaluation makes no more calls than this.
MAX_CALLS = 200

_ENCODER = msgspec.json.Encoder(order="sorted")


class Call(msgspec.Struct, frozen=True):
    """One call: what is called with what, and how many equal calls this evaluation made before."""

    function: str
    arguments: tuple[Json, ...]
    nth: int = 0
    #: Whose call it is when several expressions share a session, such as `before[1]`.
    place: str = ""

    @property
    def key(self) -> str:
        """By which its result is found again."""
        return _ENCODER.encode([self.place, self.function, self.arguments, self.nth]).decode()

    def __str__(self) -> str:
        return f"{self.function}({', '.join(_ENCODER.encode(value).decode() for value in self.arguments)})"


class Finished(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a call ended. An error is remembered as a result is."""

    value: Json = None
    error: str | None = None


class Session(msgspec.Struct, omit_defaults=True):
    """What a suspended evaluation must keep: the time it sees and the calls it has finished.

    `msgspec.json.encode` stores it and `msgspec.json.decode(data, type=Session)` brings it back.
    """

    #: The time that expressions see as `now`, ISO 8601 in UTC. It does not move while a session lasts.
    now: str
    finished: dict[str, Finished] = {}

    def settle(self, call: Call, value: Any) -> None:
        """`call` returned `value`."""
        self.finished[call.key] = Finished(normalise(value))

    def fail(self, call: Call, error: str) -> None:
        """`call` was made and failed."""
        self.finished[call.key] = Finished(None, error)


class Pass:
    """One evaluation from beginning to end: it counts calls, and stops at the first that has no result."""

    def __init__(self, session: Session, place: str) -> None:
        self._session = session
        self._place = place
        self._seen: dict[str, int] = {}
        self._calls = 0
        #: The call to perform next.
        self.pending: Call | None = None

    def call(self, function: str, arguments: tuple[Any, ...]) -> Json:
        """The result of this call. Raises when there is none yet; the engine turns that into an error value."""
        if self.pending is not None:
            # What follows may depend on the call that waits.
            raise Suspended(self.pending)
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise CallFailed(f"more than {MAX_CALLS} calls in one expression")
        first = Call(function, tuple(arguments_plain(argument) for argument in arguments), 0, self._place)
        nth = self._seen.get(first.key, 0)
        self._seen[first.key] = nth + 1
        call = msgspec.structs.replace(first, nth=nth)
        finished = self._session.finished.get(call.key)
        if finished is None:
            self.pending = call
            raise Suspended(call)
        if finished.error is not None:
            raise CallFailed(f"{function}: {finished.error}")
        return finished.value


#: The evaluation under way. The engine's functions have no other way to know it.
CURRENT: ContextVar[Pass] = ContextVar("errands_cel_pass")


def awaited(function: str, *arguments: Any) -> Json:
    """What every awaited function does."""
    return CURRENT.get().call(function, arguments)
