"""Compiling an expression in a scope, and evaluating it once.

The engine is cel-expr-python (extra `policy`). It is imported when it is first needed; only this module and `values`
know it.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec

from errands.errors import ConfigurationError
from errands.policy.cel.scopes import ALIASES, AWAITED, Scope
from errands.policy.cel.session import CURRENT, CelError, Pass, Session, Suspended, awaited
from errands.policy.cel.tokens import (
    CAPABILITIES,
    Needs,
    Token,
    check_paths,
    closing,
    copying,
    depth,
    growth,
    is_macro,
    names,
    needs,
    reads,
    tokens,
    without_has_event,
)
from errands.policy.cel.values import (
    TOO_MUCH,
    Json,
    Result,
    SeenContext,
    arguments_plain,
    as_seen,
    is_cut,
    longest,
    normalise,
)

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

#: What to do about an error, by words of the engine's message.
_HINTS = {
    "Key not found": "ask with has(...) before reading a field that may be absent",
    "o matching overload": "the operands have types that do not go together; convert with int(), double() or string()",
    "Index error": "ask for size(...) before reading an item",
    "recursion": _SIMPLER,
    "budget": "loop over fewer items",
    _NO_MEMORY: "do less in one expression",
    "No value with name": "the variable has no value here",
}


# The engine

#: The types that awaited functions return. Others return any JSON value.
_RETURNS = {"review": "BOOL", "mount.read": "STRING", "mount.write": "STRING"}


@lru_cache(maxsize=1)
def engine() -> Any:
    """Return the engine's module. Raises `ConfigurationError` when it is not installed."""
    try:
        return importlib.import_module("cel_expr_python.cel")
    except ImportError:
        raise ConfigurationError(
            "policies, guardrails and manifests need the expression language: pip install 'errands[policy]'"
        ) from None


@lru_cache(maxsize=256)
def environment(scope: Scope) -> Any:
    """Return the engine's environment in which exactly the names of `scope` exist."""
    cel = engine()
    variables = dict.fromkeys(scope.variables, cel.Type.DYN)
    if "now" in variables:
        variables["now"] = cel.Type.STRING
    return cel.NewEnv(
        variables=variables,
        functions=_functions(scope),
        container=cel.ExpressionContainer(aliases={alias: ALIASES[alias] for alias in scope.aliases}),
    )


def _functions(scope: Scope) -> list[Any]:
    cel = engine()
    # A parameter of type DYN never matches at run time; one of type Any takes every value.
    anything = cel.Type("google.protobuf.Any")
    declared = [
        _declare("put", [anything] * 3, cel.Type.DYN, _put, member=True),
        _declare("last", [anything], cel.Type.DYN, _last, member=True),
    ]
    for name in sorted(scope.functions):
        parameters = [cel.Type.STRING] * AWAITED[name]
        returns = getattr(cel.Type, _RETURNS.get(name, "DYN"))
        declared.append(_declare(name, parameters, returns, partial(awaited, name)))
    return declared + [
        _declare(name, [anything], cel.Type.DYN, partial(_capability, name)) for name in sorted(scope.capabilities)
    ]


def _declare(name: str, parameters: list[Any], returns: Any, call: Any, *, member: bool = False) -> Any:
    cel = engine()
    overload = cel.Overload(f"errands_{name}", return_type=returns, parameters=parameters, is_member=member, impl=call)
    return cel.FunctionDecl(name, [overload])


def _put(target: Any, key: Any, value: Any) -> Json:
    if not isinstance(target, dict) or not isinstance(key, str):
        raise TypeError("put() is for a map, a string and a value")
    return normalise(arguments_plain({**target, key: value}))


def _last(target: Any) -> Json:
    if not isinstance(target, list):
        raise TypeError("last() is for a list")
    if not target:
        raise IndexError("last() of an empty list; ask for its size() first")
    return normalise(arguments_plain(target[-1]))


def _capability(name: str, arguments: Any) -> Json:
    if not isinstance(arguments, dict):
        raise TypeError(f"{name}() takes one map of arguments, such as {name}({{'key': 'value'}})")
    return awaited(name, arguments)


# Values


class Variables:
    """One consistent set of values, for any number of expressions.

    `context` is taken as it is, because `errands.policy.context` keeps it plain; everything else is made plain here.
    """

    def __init__(self, context: Mapping[str, Json] | None = None, **values: Any) -> None:
        self._context = context
        self._values = {name: as_seen(value) for name, value in values.items()}
        #: Values that are too large to be seen as they are, and parts of the context with such values.
        self.too_large = frozenset(name for name, value in values.items() if is_cut(value))
        self.cut = context.cut if isinstance(context, SeenContext) else frozenset[tuple[str, ...]]()
        self._longest: dict[tuple[Scope, Needs], int] = {}
        self._sizes: dict[tuple[Scope, Needs, frozenset[str]], int] = {}
        self._activations: dict[tuple[Scope, str, Needs], Any] = {}

    def activation(self, scope: Scope, now: str, needs: Needs) -> Any:
        """Return the engine's form of these values. Expressions that need the same parts of the context share it."""
        key = (scope, now, needs)
        found = self._activations.get(key)
        if found is None:
            found = environment(scope).Activation(self._visible(scope, now, needs))
            self._activations[key] = found
        return found

    def longest(self, scope: Scope, needs: Needs) -> int:
        """Return the number of items of the longest list or map that an expression may see."""
        key = (scope, needs)
        if key not in self._longest:
            self._longest[key] = longest(self._visible(scope, "", needs))
        return self._longest[key]

    def size(self, scope: Scope, needs: Needs, names: frozenset[str]) -> int:
        """Return the bytes, as JSON, of everything that an expression looks at."""
        key = (scope, needs, names)
        if key not in self._sizes:
            self._sizes[key] = len(msgspec.json.encode(self.named(scope, needs, names)))
        return self._sizes[key]

    def named(
        self, scope: Scope, needs: Needs, names: frozenset[str]
    ) -> tuple[dict[str, Json] | None, dict[str, Json]]:
        """Return what an expression with these names looks at: of the context, and beside it."""
        context, values = self._seen(scope, needs)
        return context, {name: value for name, value in values.items() if name in names}

    def _seen(self, scope: Scope, needs: Needs) -> tuple[dict[str, Json] | None, dict[str, Json]]:
        values = {name: value for name, value in self._values.items() if name in scope.variables}
        has_context = self._context is not None and "context" in scope.variables
        return project(self._context or {}, needs) if has_context else None, values

    def _visible(self, scope: Scope, now: str, needs: Needs) -> dict[str, Json]:
        context, visible = self._seen(scope, needs)
        if "now" in scope.variables:
            visible["now"] = now
        if context is not None:
            visible["context"] = context
        return visible


def project(context: Mapping[str, Json], needs: Needs) -> dict[str, Json]:
    """Return the part of the context that an expression can touch, with `cap` if it names it."""
    full, short = CAPABILITIES
    capabilities = context.get(full, {})
    if needs.whole:
        return {**context, **({short: capabilities} if needs.cap else {})}
    seen = {name: context[name] for name in needs.sections if name in context}
    if short in needs.sections:
        seen[short] = capabilities
    for section, name in needs.records:
        if section not in needs.sections:
            record = {name: capabilities[name]} if name in capabilities else {}
            seen[section] = {**seen.get(section, {}), **record}
    return seen


# Programs


class Program(msgspec.Struct, frozen=True, eq=False):
    """A compiled expression, which may be evaluated any number of times, from any thread."""

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
    #: Whether it has loops or regular expressions.
    loops: bool
    #: The engine's own.
    expression: Any

    @property
    def may_be_map(self) -> bool:
        """Whether it may return a map, as far as that is known before it is evaluated."""
        return str(self.expression.return_type()).startswith(("MAP", "DYN"))


@lru_cache(maxsize=1024)
def compile(scope: Scope, source: str, *, condition: bool = False) -> Program:  # noqa: A001 - the word for it
    """Compile an expression. Raises `CelError` for wrong syntax, names and types, and for one that is too large."""
    if len(source) > scope.max_source:
        raise CelError(
            source, f"{len(source):,} characters are too many", hint=f"at most {scope.max_source:,} are taken"
        )
    if not source.isascii() and source.encode("utf-8", "replace").decode() != source:
        raise CelError(source, "the source is not valid Unicode", hint="remove lone surrogates")
    row = tuple(tokens(source))
    if depth(row) > MAX_DEPTH:
        raise CelError(source, f"brackets are nested deeper than {MAX_DEPTH} levels", hint=_SIMPLER)
    if growth(row) > MAX_GROWTH:
        raise CelError(source, "macros that multiply their values", hint="use fewer of them, or each value less often")
    try:
        expression = environment(scope).compile(without_has_event(scope, source, row))
    except _ENGINE_ERRORS as error:
        raise _compile_error(scope, source, row, str(error)) from None
    if condition and expression.return_type() not in (engine().Type.BOOL, engine().Type.DYN):
        raise _not_a_condition(source, str(expression.return_type()).lower())
    if scope.variables:
        # Not in a script, which runs once: a model could have many expensive patterns checked.
        check_paths(scope, source)
        _check_literals(source, row)
    loops = any(is_macro(row, index) or token.text == "matches" for index, token in enumerate(row))
    return Program(scope, source, condition, needs(row), reads(row), names(row), copying(row), loops, expression)


def _check_literals(source: str, row: Sequence[Token]) -> None:
    """Raise `CelError` for a literal that its function can never read, such as `matches('(a+')`."""
    for index in range(len(row) - 2):
        if row[index].text not in _READABLE or row[index].kind != "name" or row[index + 1].text != "(":
            continue
        end = closing(row, index + 1)
        # The pattern is the last argument, whether the text comes before the function or is its first argument.
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
    """Return the engine's value of an expression without names; None for one that it does not take."""
    try:
        return environment(_NOTHING).compile(source).eval(Variables({}).activation(_NOTHING, "", Needs()))
    except _ENGINE_ERRORS:
        return None


def _compile_error(scope: Scope, source: str, row: Sequence[Token], text: str) -> CelError:
    found = _PLACE.search(text)
    if found is None:
        return CelError(source, _problem(text), hint=_hint(text))
    line, column, problem = int(found[1]), int(found[2]), _problem(found[3])
    undeclared = _UNDECLARED.search(problem)
    if undeclared is not None:
        problem, hint = unknown_name(scope, undeclared[1], row)
    else:
        problem, hint = syntax(problem, row)
        hint = _hint(problem) or hint
    if line < 1:
        return CelError(source, problem, hint=hint)
    return CelError(source, problem, hint=hint, line=line, column=column)


def run(program: Program, variables: Variables, session: Session, *, place: str = "") -> Json:
    """Evaluate once, without waiting. Raises `Suspended` for the first call without a result, and `CelError`."""
    check_seen(program, variables)
    if program.copying:
        _check_items(program, variables, session)
    current = Pass(session, place)
    token = CURRENT.set(current)
    try:
        value = program.expression.eval(variables.activation(program.scope, session.now, program.needs))
    except _ENGINE_ERRORS as error:
        # The engine raises when its budget is spent or a function returned a value of another type.
        raise CelError(program.source, _problem(str(error)), hint=_hint(str(error))) from None
    finally:
        CURRENT.reset(token)
    if current.pending is not None:
        raise Suspended(current.pending)
    return _result(program, value)


def check_seen(program: Program, variables: Variables) -> None:
    """Raise `CelError` when the expression decides by a value that is too large to be seen as it is."""
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
        raise _not_a_condition(program.source, str(kind).lower())
    return plain


def _not_a_condition(source: str, kind: str) -> CelError:
    return CelError(source, f"a condition must be true or false, not {kind}", hint="compare the value with something")


def _problem(text: str) -> str:
    """Return the engine's message without its names for statuses."""
    if _NO_MEMORY in text:
        return "it needs too much memory"
    first = text.strip().partition("\n")[0] or "the evaluation failed"
    # Some messages repeat the data they are about.
    return _STATUS.sub("", first)[:_MAX_PROBLEM]


def _hint(text: str) -> str:
    return next((hint for words, hint in _HINTS.items() if words in text), "")


# Messages about known mistakes

#: Names of other languages.
_INSTEAD = {
    **dict.fromkeys(("len", "length", "count"), "size(...)"),
    **dict.fromkeys(("None", "nil", "undefined", "NULL"), "null"),
    **dict.fromkeys(("any", "some"), "list.exists(x, ...)"),
    "every": "list.all(x, ...)",
    "True": "true",
    "False": "false",
    "float": "double(...)",
    "str": "string(...)",
    "includes": "text.contains(...), or item in list",
}
#: How functions are called.
_CALLS = {
    "review": "review('user')",
    "mount.read": "mount.read('path')",
    "mount.write": "mount.write('path', 'text')",
    "file": "file('path')",
    "has": "has(map.field)",
    "size": "size(value)",
    "contains": "text.contains('part')",
    "startsWith": "text.startsWith('part')",
    "endsWith": "text.endsWith('part')",
    "matches": "text.matches('pattern')",
    "all": "list.all(x, ...)",
    "exists": "list.exists(x, ...), or has(map.field)",
    "exists_one": "list.exists_one(x, ...)",
    "map": "list.map(x, ...)",
    "filter": "list.filter(x, ...)",
    "string": "string(value)",
    "int": "int(value)",
    "double": "double(value)",
    "timestamp": "timestamp('2026-05-20T03:45:00Z')",
    "duration": "duration('90s')",
    "put": "map.put('key', value)",
    "last": "list.last()",
}
_WAITING = ("review", "mount.read", "mount.write", "file")
_WORDS = {"and": "&&", "or": "||", "not": "!"}
_COMPARING = ("=", "!", "<", ">")
_EARLY = "mismatched input '<EOF>'"


def unknown_name(scope: Scope, name: str, row: Sequence[Token]) -> tuple[str, str]:
    """Return what is wrong with a name that the engine does not know in `scope`, and what to do."""
    root = name.partition(".")[0]
    if _is_key(root, row):
        return f"{root!r} is a key of a map without quotes", f"write '{root}'"
    known = [call for call in _CALLS if call not in _WAITING or call in scope.functions]
    called = [call for call in known if call == name or call.startswith(f"{root}.")]
    if called:
        return f"{root!r} is not called as it must be", f"write {' or '.join(_CALLS[call] for call in called)}"
    available = f"available are {scope.describe()}, and the functions of the language"
    close = difflib.get_close_matches(root, [*scope.variables, *scope.capabilities, *known], 1, 0.8)
    instead = _INSTEAD.get(root) or _arguments(scope, root)
    if instead:
        available = f"write {instead}; {available}"
    elif close:
        available = f"did you mean {close[0]}? {available}"
    return f"{root!r} is not available in {scope.name}", available


def _arguments(scope: Scope, root: str) -> str:
    """Return what the arguments of a call, or the operator's settings, are called in this scope."""
    if root in ("input", "i", "parameters", "params", "args", "arguments"):
        return next((f"{name}.NAME" for name in ("parameters", "input") if name in scope.variables), "")
    return "settings.NAME" if root in ("env", "environ", "secrets") and "settings" in scope.variables else ""


def _is_key(name: str, row: Sequence[Token]) -> bool:
    """Return whether it is in the place of a key in a map."""
    texts = [token.text for token in row]
    return any(
        texts[index] in ("{", ",") and texts[index + 1] == name and texts[index + 2] == ":" and "?" not in texts[:index]
        for index in range(len(texts) - 2)
    )


def syntax(problem: str, row: Sequence[Token]) -> tuple[str, str]:
    """Return the engine's complaint about syntax, shortened, and what to do if it is a known mistake."""
    if problem.startswith("Syntax error") and _EARLY in problem and "expecting {" in problem:
        problem = "Syntax error: the expression ends too early"
    if problem == "reserved identifier: if":
        return problem, "write condition ? value : other"
    return problem, next(filter(None, (_sign(row, index) for index in range(len(row)))), "")


def _sign(row: Sequence[Token], index: int) -> str:
    """Return what to write in place of the token at `index`, if it belongs to another language."""
    token = row[index]
    before = row[index - 1] if index and row[index - 1].start + len(row[index - 1].text) == token.start else None
    after = row[index + 1] if index + 1 < len(row) and row[index + 1].start == token.start + 1 else None
    if token.kind == "name" and token.text in _WORDS and (index == 0 or row[index - 1].text != "."):
        return f"write {_WORDS[token.text]} for {token.text}"
    if token.kind != "sign":
        return ""
    if token.text == "=" and before is not None and before.text in ("=", "!") and after is not None:
        return f"write {before.text}= to compare" if after.text == "=" else ""
    if token.text == "=" and (before is None or before.text not in _COMPARING):
        if after is None or after.text not in ("=", ">"):
            return "write == to compare"
        return "write list.filter(x, ...) and the like" if after.text == ">" else ""
    if token.text in "&|" and not any(near is not None and near.text == token.text for near in (before, after)):
        return f"write {token.text * 2}"
    if token.text in "'\"":
        return "close the text with the quote that it begins with"
    return ""
