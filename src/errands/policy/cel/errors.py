"""What goes wrong with an expression, and what is no error: a call that has to be waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from errands.errors import ErrandsError

if TYPE_CHECKING:
    from errands.policy.cel.session import Call

#: More of a source than this is not repeated in a message.
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


class CallFailed(ErrandsError):
    """Raised by whoever performs a call: it was made and failed. The failure is remembered like a result."""


class Suspended(ErrandsError):
    """An expression waits for `call`; evaluated again with the same session, it goes on from there."""

    def __init__(self, call: Call) -> None:
        super().__init__(f"waits for {call}")
        self.call = call
