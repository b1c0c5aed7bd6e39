"""Calls that an expression makes and other code performs, and the errors of expressions.

The engine cannot wait. A function that has no result yet records its call and stops the evaluation; the call is
performed, its result goes into the session, and the expression is evaluated again. It finds the result under the
function, its arguments and the number of equal calls before it. A session is plain JSON: it can be stored while a
review takes days, and a finished call is never made twice.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import msgspec

from errands.errors import ErrandsError
from errands.policy.cel.values import Json, arguments_plain, normalise

#: The number of calls that one evaluation may make.
MAX_CALLS = 200

_ENCODER = msgspec.json.Encoder(order="sorted")
#: Characters of a source that are repeated in a message.
_SHOWN = 200


class CelError(ErrandsError):
    """An expression cannot be compiled, or its evaluation failed. The message says where, why and what to do."""

    def __init__(
        self, source: str, problem: str, *, hint: str = "", line: int | None = None, column: int | None = None
    ) -> None:
        self.source = source
        #: What is wrong, without the source.
        self.problem = problem
        #: What to do about it; may be empty.
        self.hint = hint
        #: From 1; None when the engine does not say.
        self.line = line
        self.column = column
        shown = source if len(source) <= _SHOWN else f"{source[:_SHOWN]}…"
        place = f" (line {line}, column {column})" if line is not None else ""
        super().__init__(f"{problem}{place} in `{shown}`" + (f": {hint}" if hint else ""))

    @classmethod
    def at(cls, source: str, position: int, problem: str, *, hint: str) -> CelError:
        """Return the error at a position of the source."""
        before = source[:position]
        return cls(source, problem, hint=hint, line=before.count("\n") + 1, column=position - before.rfind("\n"))


class CallFailed(ErrandsError):
    """A call was made and failed. The failure is remembered like a result."""


class Suspended(ErrandsError):
    """An expression waits for `call`; evaluated again with the same session, it continues from there."""

    def __init__(self, call: Call) -> None:
        super().__init__(f"waits for {call}")
        self.call = call


class Call(msgspec.Struct, frozen=True):
    """One call: the function, its arguments, and how many equal calls this evaluation made before."""

    function: str
    arguments: tuple[Json, ...]
    nth: int = 0
    #: The expression that makes the call when several share a session, such as `before[1]`.
    place: str = ""

    @property
    def key(self) -> str:
        """The name under which its result is found again."""
        return _ENCODER.encode([self.place, self.function, self.arguments, self.nth]).decode()

    def __str__(self) -> str:
        return f"{self.function}({', '.join(_ENCODER.encode(value).decode() for value in self.arguments)})"


class Finished(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a call ended. An error is remembered like a result."""

    value: Json = None
    error: str | None = None


class Session(msgspec.Struct, omit_defaults=True):
    """What a suspended evaluation must keep: the time it sees and the calls it has finished."""

    #: The time that expressions see as `now`, ISO 8601 in UTC. It does not move while a session lasts.
    now: str
    #: The calls that have finished, by their keys.
    finished: dict[str, Finished] = {}

    def settle(self, call: Call, value: Any) -> None:
        """Record that `call` returned `value`."""
        self.finished[call.key] = Finished(normalise(value))

    def fail(self, call: Call, error: str) -> None:
        """Record that `call` was made and failed."""
        self.finished[call.key] = Finished(None, error)


class Pass:
    """One evaluation: it counts calls, and stops at the first that has no result."""

    def __init__(self, session: Session, place: str) -> None:
        self._session = session
        self._place = place
        self._seen: dict[str, int] = {}
        self._calls = 0
        #: The call to perform next.
        self.pending: Call | None = None

    def call(self, function: str, arguments: tuple[Any, ...]) -> Json:
        """Return the result of a call. Raises when it is missing; the engine turns that into an error value."""
        if self.pending is not None:
            # Later calls may depend on the one that is pending.
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


#: The current evaluation. The engine's functions have no other way to know it.
CURRENT: ContextVar[Pass] = ContextVar("errands_cel_pass")


def awaited(function: str, *arguments: Any) -> Json:
    """Return the result of a call of an awaited function."""
    return CURRENT.get().call(function, arguments)
