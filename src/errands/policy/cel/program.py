"""Compiling an expression in a scope, and evaluating it once.

The engine is cel-expr-python (extra `policy`). It is imported when it is first needed; only this module and `values`
know it.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import msgspec

from errands.errors import ConfigurationError
from errands.policy.cel import syntax
from errands.policy.cel.scopes import ALIASES, AWAITED, NameScope
from errands.policy.cel.session import CURRENT, CelError, Pass, Session, Suspended, awaited
from errands.policy.cel.syntax import CAPABILITIES, Parts, Token
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
#: See `syntax.growth`.
MAX_GROWTH = 256
#: The engine builds the list of a `map` or `filter` in quadratic time and memory: 9,000 items take a gigabyte.
MAX_ITEMS = 2_000

_ENGINE_ERRORS = (RuntimeError, MemoryError, ValueError)
#: For expressions that need no variable.
_NOTHING = NameScope(name="a constant")


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
def environment(scope: NameScope) -> Any:
    """Return the engine's environment in which exactly the names of `scope` exist."""
    cel = engine()
    # A parameter of type DYN never matches at run time; one of type Any takes every value.
    anything = cel.Type("google.protobuf.Any")
    variables = dict.fromkeys(scope.variables, cel.Type.DYN)
    if "now" in variables:
        variables["now"] = cel.Type.STRING

    def declare(name: str, parameters: list[Any], returns: Any, call: Any, *, member: bool = False) -> Any:
        overload = cel.Overload(
            f"errands_{name}", return_type=returns, parameters=parameters, is_member=member, impl=call
        )
        return cel.FunctionDecl(name, [overload])

    functions = [
        declare("put", [anything] * 3, cel.Type.DYN, _put, member=True),
        declare("last", [anything], cel.Type.DYN, _last, member=True),
    ]
    for name in sorted(scope.functions):
        returns = getattr(cel.Type, _RETURNS.get(name, "DYN"))
        functions.append(declare(name, [cel.Type.STRING] * AWAITED[name], returns, partial(awaited, name)))
    capabilities = sorted(scope.capabilities)
    functions += [declare(name, [anything], cel.Type.DYN, partial(_capability, name)) for name in capabilities]
    aliases = {alias: ALIASES[alias] for alias in scope.aliases}
    return cel.NewEnv(variables=variables, functions=functions, container=cel.ExpressionContainer(aliases=aliases))


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


# Programs


class Program(msgspec.Struct, frozen=True, eq=False):
    """A compiled expression, which may be evaluated any number of times, from any thread."""

    scope: NameScope
    source: str
    #: It must give true or false.
    condition: bool
    #: The parts of the context that it needs, and those of them into which it looks; see `syntax.context_parts`.
    needs: Parts
    reads: Parts
    #: The variables that it names.
    names: frozenset[str]
    #: See `syntax.copying`.
    copying: int
    #: Whether it has loops or regular expressions.
    loops: bool
    #: The engine's own.
    expression: Any

    @property
    def may_be_map(self) -> bool:
        """Return whether it may return a map, as far as that is known before it is evaluated."""
        return str(self.expression.return_type()).startswith(("MAP", "DYN"))


@lru_cache(maxsize=1024)
def compile(scope: NameScope, source: str, *, condition: bool = False) -> Program:  # noqa: A001 - the word for it
    """Compile an expression. Raises `CelError` for wrong syntax, names and types, and for one that is too large."""
    if len(source) > scope.max_source:
        raise CelError(
            source, f"{len(source):,} characters are too many", hint=f"at most {scope.max_source:,} are taken"
        )
    if not source.isascii() and source.encode("utf-8", "replace").decode() != source:
        raise CelError(source, "the source is not valid Unicode", hint="remove lone surrogates")
    row = tuple(syntax.tokens(source))
    if syntax.depth(row) > MAX_DEPTH:
        raise CelError(source, f"brackets are nested deeper than {MAX_DEPTH} levels", hint=_SIMPLER)
    if syntax.growth(row) > MAX_GROWTH:
        raise CelError(source, "macros that multiply their values", hint="use fewer of them, or each value less often")
    try:
        expression = environment(scope).compile(syntax.without_has_event(scope, source, row))
    except _ENGINE_ERRORS as error:
        raise _compile_error(scope, source, str(error)) from None
    if condition and expression.return_type() not in (engine().Type.BOOL, engine().Type.DYN):
        raise _not_a_condition(source, str(expression.return_type()).lower())
    if scope.variables:
        # Not in a script, which runs once: a model could have many expensive patterns checked.
        syntax.check_paths(scope, source)
        syntax.check_choices(scope, source, row)
        _check_literals(source, row)
    needs, reads = syntax.context_parts(row)
    named = {ALIASES.get(token.text, token.text) for token in row}
    loops = bool(syntax.macros(row)) or "matches" in named
    names = scope.variables & named
    return Program(scope, source, condition, needs, reads, names, syntax.copying(row), loops, expression)


#: Functions that fail for some literals, and what they can read.
_READABLE = {
    "matches": "write a regular expression as RE2 has them",
    "timestamp": "write one such as '2026-05-20T03:45:00Z'",
    "duration": "write one such as '90s' or '1h30m'",
    "bool": "write 'true' or 'false'",
    **dict.fromkeys(("int", "uint", "double"), "write a number"),
}


def _check_literals(source: str, row: Sequence[Token]) -> None:
    """Raise `CelError` for a literal that its function can never read, such as `matches('(a+')`."""
    for index in range(len(row) - 2):
        function = row[index].text
        if function not in _READABLE or row[index + 1].text != "(":
            continue
        end = syntax.closing(row, index + 1)
        # The pattern is the last argument, whether the text comes before the function or is its first argument.
        commas = (at for at in range(end - 1, index + 1, -1) if row[at].text == ",")
        first = next(commas, index + 1) + 1
        if first >= end or any(token.kind == "name" for token in row[first:end]):
            continue
        argument = source[row[first].start : row[end].start if end < len(row) else None]
        call = f"''.matches({argument})" if function == "matches" else f"{function}({argument})"
        constant = environment(_NOTHING)
        try:
            value = constant.compile(call).eval(constant.Activation({}))
        except _ENGINE_ERRORS:
            continue
        if value.type() == engine().Type.ERROR:
            problem = f"{function} cannot read {argument.strip()}: {_problem(str(value.value()))}"
            raise CelError.at(source, row[first].start, problem, hint=_READABLE[function])


# Values


class Variables:
    """One consistent set of values, for any number of expressions.

    `context` is taken as it is, because `Context.plain` returns JSON; everything else is made plain here.
    """

    def __init__(self, context: Mapping[str, Json] | None = None, **values: Any) -> None:
        self._context = context
        self._values = {name: as_seen(value) for name, value in values.items()}
        #: Values that are too large to be seen as they are, and parts of the context with such values.
        self.too_large = frozenset(name for name, value in values.items() if is_cut(value))
        self.cut = context.cut if isinstance(context, SeenContext) else frozenset[tuple[str, ...]]()
        self._seen: dict[tuple[NameScope, Parts, frozenset[str]], Seen] = {}

    def seen_by(self, program: Program) -> Seen:
        """Return what an expression looks at. Expressions that name the same share it."""
        key = (program.scope, program.needs, program.names)
        if key not in self._seen:
            values = {name: self._values[name] for name in program.names if name in self._values}
            if self._context is not None and "context" in program.names:
                values["context"] = project(self._context, program.needs)
            self._seen[key] = Seen(program.scope, values)
        return self._seen[key]


class Seen:
    """The values that an expression looks at, and how much they are."""

    def __init__(self, scope: NameScope, values: dict[str, Json]) -> None:
        self._scope = scope
        self.values = values
        self._activations: dict[str, Any] = {}

    def activation(self, now: str) -> Any:
        """Return the engine's form of the values."""
        if now not in self._activations:
            times = {"now": now} if "now" in self._scope.variables else {}
            self._activations[now] = environment(self._scope).Activation({**self.values, **times})
        return self._activations[now]

    @cached_property
    def longest(self) -> int:
        """The number of items of the longest list or map."""
        return longest(self.values)

    @cached_property
    def size(self) -> int:
        """In bytes, as JSON."""
        return len(msgspec.json.encode(self.values))


def project(context: Mapping[str, Json], needs: Parts) -> dict[str, Json]:
    """Return the part of the context that an expression needs, with `cap` if it names it."""
    full, short = CAPABILITIES
    capabilities = context.get(full, {})
    every = {**context, short: capabilities}
    if () in needs:
        return every if (short,) in needs else dict(context)
    seen = {path[0]: every[path[0]] for path in needs if len(path) == 1 and path[0] in every}
    for section, name in (path for path in needs if len(path) == 2 and path[:1] not in needs):
        record = {name: capabilities[name]} if name in capabilities else {}
        seen[section] = {**seen.get(section, {}), **record}
    return seen


def run(program: Program, variables: Variables, session: Session, *, place: str = "") -> Json:
    """Evaluate once, without waiting. Raises `Suspended` for the first call without a result, and `CelError`."""
    check_seen(program, variables)
    seen = variables.seen_by(program)
    if program.copying:
        items = seen.longest
        if program.scope.functions or program.scope.capabilities:
            items = max([items, *(longest(finished.value) for finished in session.finished.values())])
        if items * program.copying > MAX_ITEMS:
            most = f"they take lists of {MAX_ITEMS // program.copying:,} items here; all and exists take longer ones"
            raise CelError(program.source, f"map and filter beside a list of {items:,} items", hint=most)
    current = Pass(session, place)
    token = CURRENT.set(current)
    try:
        value = program.expression.eval(seen.activation(session.now))
    except _ENGINE_ERRORS as error:
        # The engine raises when its budget is spent or a function returned a value of another type.
        raise _failure(program.source, str(error)) from None
    finally:
        CURRENT.reset(token)
    if current.pending is not None:
        raise Suspended(current.pending)
    kind = value.type()
    if kind == engine().Type.ERROR:
        raise _failure(program.source, str(value.value()))
    try:
        plain = Result().plain(value)
    except ValueError as error:
        raise CelError(program.source, str(error), hint="return less, or another form of it") from None
    if program.condition and not isinstance(plain, bool):
        raise _not_a_condition(program.source, str(kind).lower())
    return plain


def check_seen(program: Program, variables: Variables) -> None:
    """Raise `CelError` when the expression decides by a value that is too large to be seen as it is."""
    if not program.scope.decides:
        return
    for name in variables.too_large & program.names:
        raise CelError(program.source, f"{name} has {TOO_MUCH}", hint="send less at once")
    for part in variables.cut:
        if "context" in program.names and any(part[: len(read)] == read for read in program.reads):
            raise CelError(program.source, f"{'.'.join(('context', *part))} holds {TOO_MUCH}", hint="refuse that")


# Messages

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
    "reserved identifier: if": "write condition ? value : other",
}
#: Signs and words of other languages, as patterns for an expression without its texts.
_MISTAKES = {
    r"(?<![\w.])and\b": "write && for and",
    r"(?<![\w.])or\b": "write || for or",
    r"(?<![\w.])not\b": "write ! for not",
    r"===": "write == to compare",
    r"!==": "write != to compare",
    r"(?<![=!<>])=(?![=>])": "write == to compare",
    r"(?<![=!<>])=>": "write list.filter(x, ...) and the like",
    r"(?<!&)&(?!&)": "write &&",
    r"(?<!\|)\|(?!\|)": "write ||",
    r"['\"]": "close the text with the quote that it begins with",
}
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
    "exists": "list.exists(x, ...), or has(map.field)",
    **{name: f"list.{name}(x, ...)" for name in ("all", "exists_one", "map", "filter")},
    **{name: f"text.{name}('part')" for name in ("contains", "startsWith", "endsWith")},
    "matches": "text.matches('pattern')",
    **{name: f"{name}(value)" for name in ("size", "string", "int", "double")},
    "timestamp": "timestamp('2026-05-20T03:45:00Z')",
    "duration": "duration('90s')",
    "put": "map.put('key', value)",
    "last": "list.last()",
}


def _not_a_condition(source: str, kind: str) -> CelError:
    return CelError(source, f"a condition must be true or false, not {kind}", hint="compare the value with something")


def _failure(source: str, text: str) -> CelError:
    return CelError(source, _problem(text), hint=_hint(text))


def _problem(text: str) -> str:
    """Return the engine's message without its names for statuses, shortened: some repeat the data they are about."""
    if _NO_MEMORY in text:
        return "it needs too much memory"
    first = text.strip().partition("\n")[0] or "the evaluation failed"
    return re.sub(r"^[A-Z_]+: |\s*\[[A-Z_]+\]$", "", first)[:300]


def _hint(text: str) -> str:
    return next((hint for words, hint in _HINTS.items() if words in text), "")


def _compile_error(scope: NameScope, source: str, text: str) -> CelError:
    """Return the engine's complaint about an expression, with what to do if it is a known mistake."""
    found = re.search(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)", text)
    if found is None:
        return _failure(source, text)
    line, column, problem, plain = int(found[1]), int(found[2]), _problem(found[3]), syntax.without_texts(source)
    undeclared = re.search(r"undeclared reference to '([^']+)'", problem)
    if undeclared is not None:
        problem, hint = _unknown_name(scope, undeclared[1], plain)
    else:
        if problem.startswith("Syntax error") and "mismatched input '<EOF>'" in problem and "expecting {" in problem:
            problem = "Syntax error: the expression ends too early"
        mistakes = ((re.search(pattern, plain), hint) for pattern, hint in _MISTAKES.items())
        first = min(((match.start(), hint) for match, hint in mistakes if match), default=(0, ""))
        hint = _hint(problem) or first[1]
    if line < 1:
        return CelError(source, problem, hint=hint)
    return CelError(source, problem, hint=hint, line=line, column=column)


def _unknown_name(scope: NameScope, name: str, plain: str) -> tuple[str, str]:
    """Return what is wrong with a name that the engine does not know in `scope`, and what to do."""
    root = name.partition(".")[0]
    key = re.search(rf"[{{,]\s*{re.escape(root)}\s*:", plain)
    if key is not None and "?" not in plain[: key.start()]:
        return f"{root!r} is a key of a map without quotes", f"write '{root}'"
    known = [call for call in _CALLS if call not in AWAITED or call in scope.functions]
    called = [call for call in known if call == name or call.startswith(f"{root}.")]
    if called:
        return f"{root!r} is not called as it must be", f"write {' or '.join(_CALLS[call] for call in called)}"
    instead = _INSTEAD.get(root, "")
    if root in ("input", "i", "parameters", "params", "args", "arguments"):
        instead = next((f"{name}.NAME" for name in ("parameters", "input") if name in scope.variables), "")
    elif root in ("env", "environ", "secrets") and "settings" in scope.variables:
        instead = "settings.NAME"
    close = difflib.get_close_matches(root, [*scope.variables, *scope.capabilities, *known], 1, 0.8)
    available = f"available are {scope.describe()}, and the functions of the language"
    if instead:
        available = f"write {instead}; {available}"
    elif close:
        available = f"did you mean {close[0]}? {available}"
    return f"{root!r} is not available in {scope.name}", available
