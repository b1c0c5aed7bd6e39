"""Compiling, and one evaluation on the spot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from errands.policy.cel.effort import Effort, effort
from errands.policy.cel.environment import engine, environment
from errands.policy.cel.errors import CelError, Suspended
from errands.policy.cel.mistakes import syntax, unknown_name
from errands.policy.cel.paths import check_paths
from errands.policy.cel.scopes import Scope
from errands.policy.cel.session import CURRENT, Pass, Session
from errands.policy.cel.tokens import (
    PRESENT,
    Needs,
    Rewritten,
    Token,
    closing,
    copying,
    depth,
    growth,
    names,
    needs,
    reads,
    rewrite_presence,
    tokens,
)
from errands.policy.cel.values import TOO_MUCH, Json, Result, longest
from errands.policy.cel.variables import Variables

#: The engine's own bound for expressions; brackets that keep to it are quickly judged.
MAX_DEPTH = 32
#: See `tokens.growth`.
MAX_GROWTH = 256
#: The engine builds the list of a `map` or `filter` in quadratic time and memory: 9,000 items take a gigabyte.
MAX_ITEMS = 2_000

_ENGINE_ERRORS = (RuntimeError, MemoryError, ValueError)
_PLACE = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_UNDECLARED = re.compile(r"undeclared reference to '([^']+)'")
_MAX_PROBLEM = 300
_STATUS = re.compile(r"^[A-Z_]+: |\s*\[[A-Z_]+\]$")

#: Functions that fail for some literals, and what they can read.
_READABLE = {
    "matches": "write a regular expression as RE2 has them",
    "timestamp": "write one such as '2026-05-20T03:45:00Z'",
    "duration": "write one such as '90s' or '1h30m'",
    "bool": "write 'true' or 'false'",
    **dict.fromkeys(("int", "uint", "double"), "write a number"),
}

#: For expressions that need no variable.
_NOTHING = Scope(name="a constant")

_SIMPLER = "split it into several expressions"
#: The engine's word for a `MemoryError`.
_NO_MEMORY = "bad_alloc"

#: What to do about an error of an evaluation, by words of the engine's message.
_HINTS = {
    "Key not found": "ask with has(...) before reading a field that may be absent",
    "o matching overload": "the operands have types that do not go together; convert with int(), double() or string()",
    "Index error": "ask for size(...) before reading an item",
    "recursion": _SIMPLER,
    "budget": "loop over fewer items",
    _NO_MEMORY: "do less in one expression",
    "No value with name": "the variable has no value here",
}


class Program(msgspec.Struct, frozen=True, eq=False):
    """A compiled expression. Compiled once, evaluated any number of times, from any thread."""

    scope: Scope
    source: str
    #: It must give true or false.
    condition: bool
    needs: Needs
    #: See `tokens.reads`.
    reads: frozenset[tuple[str, ...]]
    #: The variables that it names.
    names: frozenset[str]
    #: See `tokens.copying`.
    copying: int
    effort: Effort
    #: The engine's own.
    expression: Any

    @property
    def may_be_map(self) -> bool:
        """Whether it can give a map, as far as that is known before it is evaluated."""
        return str(self.expression.return_type()).startswith(("MAP", "DYN"))


@lru_cache(maxsize=1024)
def compile(scope: Scope, source: str, *, condition: bool = False) -> Program:  # noqa: A001 - the word for it
    """Raises `CelError` for everything that can be known before an evaluation: syntax, names, types, size."""
    if len(source) > scope.max_source:
        raise CelError(
            source, f"{len(source):,} characters are too many", hint=f"at most {scope.max_source:,} are taken"
        )
    if not source.isascii() and source.encode("utf-8", "replace").decode() != source:
        raise CelError(source, "the source is no valid Unicode", hint="remove lone surrogates")
    row = tuple(tokens(source))
    if depth(row) > MAX_DEPTH:
        raise CelError(source, f"brackets are nested deeper than {MAX_DEPTH} levels", hint=_SIMPLER)
    if growth(row) > MAX_GROWTH:
        raise CelError(source, "macros that multiply their values", hint="use fewer of them, or each value less often")
    rewritten = rewrite_presence(source, row)
    try:
        expression = environment(scope).compile(rewritten.source)
    except _ENGINE_ERRORS as error:
        raise _compile_error(scope, source, row, rewritten, str(error)) from None
    if condition and expression.return_type() not in (engine().Type.BOOL, engine().Type.DYN):
        kind = str(expression.return_type()).lower()
        raise CelError(
            source, f"a condition must be true or false, not {kind}", hint="compare the value with something"
        )
    if scope.variables:
        # Not in a script: a stranger could have many expensive patterns checked, and the script is run but once.
        check_paths(scope, source)
        _check_literals(source, row)
    return Program(scope, source, condition, needs(row), reads(row), names(row), copying(row), effort(row), expression)


def _check_literals(source: str, row: Sequence[Token]) -> None:
    """Raises `CelError` for a literal that its function can never read, such as `matches('(a+')`."""
    for index in range(len(row) - 2):
        if row[index].text not in _READABLE or row[index].kind != "name" or row[index + 1].text != "(":
            continue
        end = closing(row, index + 1)
        # The pattern is the last argument, whether the text stands before the function or is its first.
        commas = (at for at in range(end - 1, index + 1, -1) if row[at].text == "," and row[at].kind == "sign")
        first = next(commas, index + 1) + 1
        if first >= end or any(token.kind == "name" for token in row[first:end]):
            continue
        argument = source[row[first].start : row[end].start if end < len(row) else None]
        call = f"''.matches({argument})" if row[index].text == "matches" else f"{row[index].text}({argument})"
        value = _constant(call)
        if value is not None and value.type() == engine().Type.ERROR:
            before = source[: row[first].start]
            line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
            problem = f"{row[index].text} cannot read {argument.strip()}: {_problem(str(value.value()))}"
            raise CelError(source, problem, hint=_READABLE[row[index].text], line=line, column=column)


def _constant(source: str) -> Any:
    """The engine's value of an expression without names; None for one that it does not take."""
    try:
        return environment(_NOTHING).compile(source).eval(Variables({}).activation(_NOTHING, "", Needs()))
    except _ENGINE_ERRORS:
        return None


def _compile_error(scope: Scope, source: str, row: Sequence[Token], rewritten: Rewritten, text: str) -> CelError:
    found = _PLACE.search(text)
    if found is None:
        return CelError(source, _problem(text), hint=_hint(text))
    line, column, problem = int(found[1]), int(found[2]), _problem(found[3])
    undeclared = _UNDECLARED.search(problem)
    if undeclared is not None:
        problem, hint = unknown_name(scope, undeclared[1].removeprefix(f"{PRESENT}."), row)
    else:
        problem, hint = syntax(problem, row)
        hint = _hint(problem) or hint
    if line < 1:
        return CelError(source, problem, hint=hint)
    line, column = rewritten.original(line, column)
    return CelError(source, problem, hint=hint, line=line, column=column)


def run(program: Program, variables: Variables, session: Session, *, place: str = "") -> Json:
    """One evaluation without waiting. Raises `Suspended` for the first call without a result, `CelError` for errors."""
    check_seen(program, variables)
    if program.copying:
        _check_items(program, variables, session)
    current = Pass(session, place)
    token = CURRENT.set(current)
    try:
        value = program.expression.eval(variables.activation(program.scope, session.now, program.needs))
    except _ENGINE_ERRORS as error:
        # The engine raises instead of answering when its budget is spent or a function gave no value of its types.
        raise CelError(program.source, _problem(str(error)), hint=_hint(str(error))) from None
    finally:
        CURRENT.reset(token)
    if current.pending is not None:
        raise Suspended(current.pending)
    return _result(program, value)


def check_seen(program: Program, variables: Variables) -> None:
    """Raises `CelError` when the expression decides by a value that is too large to be seen as it is."""
    if not program.scope.decides:
        return
    for name in variables.too_large & program.names & program.scope.variables:
        raise CelError(program.source, f"{name} has {TOO_MUCH}", hint="send less at once")
    for part in variables.cut:
        if "context" in program.scope.variables and any(part[: len(read)] == read for read in program.reads):
            raise CelError(program.source, f"{'.'.join(('context', *part))} holds {TOO_MUCH}", hint="refuse that")


def _check_items(program: Program, variables: Variables, session: Session) -> None:
    items = variables.longest(program.scope, program.needs)
    if program.scope.functions or program.scope.capabilities:
        items = max([items, *(longest(finished.value) for finished in session.finished.values())])
    if items * program.copying > MAX_ITEMS:
        raise CelError(
            program.source,
            f"map and filter beside a list of {items:,} items",
            hint=f"they take lists of {MAX_ITEMS // program.copying:,} items here; all and exists take longer ones",
        )


def _result(program: Program, value: Any) -> Json:
    kind = value.type()
    if kind == engine().Type.ERROR:
        text = str(value.value())
        raise CelError(program.source, _problem(text), hint=_hint(text))
    try:
        plain = Result().plain(value)
    except ValueError as error:
        raise CelError(program.source, str(error), hint="return less, or another form of it") from None
    if program.condition and not isinstance(plain, bool):
        raise _no_condition(program.source, kind)
    return plain


def _no_condition(source: str, kind: Any) -> CelError:
    return CelError(
        source, f"a condition must be true or false, not {str(kind).lower()}", hint="compare the value with something"
    )


def _problem(text: str) -> str:
    """The engine's message without its own names for statuses."""
    if _NO_MEMORY in text:
        return "it needs too much memory"
    first = text.strip().partition("\n")[0] or "the evaluation failed"
    # Some messages repeat the data they are about.
    return _STATUS.sub("", first)[:_MAX_PROBLEM]


def _hint(text: str) -> str:
    return next((hint for words, hint in _HINTS.items() if words in text), "")
