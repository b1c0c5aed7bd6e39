"""Regular expressions and JSONPaths of documents, matched in linear time by RE2 whatever text they meet."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

from errands.agents.manifests.yaml_nodes import from_extra
from errands.policy.cel.evaluators import EvaluationStopped, current_evaluators
from errands.policy.cel.values import Json

_MATCHING = ("match", "search")
#: Values that a query may visit in this process.
_MAX_VISITS = 4_000
_LARGEST_PATTERN = 100_000
_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(\d{1,5})(?:,(\d{0,5}))?\}|.", re.DOTALL)


class PatternError(ValueError):
    """RE2 cannot match this pattern; the message says why."""


class JsonPathError(ValueError):
    """This is not a JSONPath; the message says why."""


class QueryStoppedError(ValueError):
    """A query could not be answered for this value."""


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str, *, ignore_case: bool = False) -> Any:
    """Return the pattern as `re.compile` would; with `ignore_case`, a dot also matches a line break.

    Raises `PatternError`, also for look-around and back-references, which need backtracking.
    """
    library = from_extra("re2")
    options = library.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    options.dot_nl = ignore_case
    try:
        return library.compile(pattern, options)
    except library.error as error:
        reason = error.args[0].decode(errors="replace")
        needs_backtracking = reason.startswith(("invalid perl operator", "invalid escape sequence"))
        hint = "; look-around and back-references are not supported" if needs_backtracking else ""
        raise PatternError(reason + hint) from None


# JSONPath as in RFC 9535, by python-jsonpath in its strict form


@lru_cache(maxsize=256)
def compile_path(path: str) -> Any:
    """Return the query of a path. Raises `JsonPathError`."""
    library = from_extra("jsonpath")
    environment = library.JSONPathEnvironment(strict=True)
    for name in _MATCHING:
        environment.function_extensions[name].check_cache = _compiled_or_none
    try:
        query = environment.compile(path)
        selectors = [selector for segment in query.segments for selector in segment.selectors]
        waiting = [selector.expression for selector in selectors if hasattr(selector, "expression")]
        while waiting:
            expression = waiting.pop()
            waiting += expression.children()
            if getattr(expression, "name", None) in _MATCHING:
                pattern = getattr(expression.args[1], "value", None)
                if isinstance(pattern, str):
                    compile_pattern(pattern)
    except library.JSONPathError as error:
        raise JsonPathError(str(error).partition("\n")[0]) from None
    except PatternError as error:
        raise JsonPathError(str(error)) from None
    return query


def _compiled_or_none(pattern: str) -> Any:
    """A pattern that comes from the value itself matches nothing if it is invalid, as the RFC says."""
    try:
        return compile_pattern(pattern)
    except PatternError:
        return None


async def find(path: str, value: Json) -> list[Json]:
    """Return everything that a path finds. Raises `QueryStoppedError`.

    The time for nested filters and descents grows with a power of the value's size: where that is large, a child
    process runs the query and is stopped when it takes too long.
    """
    evaluators = current_evaluators()
    nested = path.count("..") + path.count("?")
    if evaluators is None or not nested or (len(msgspec.json.encode(value)) // 2) ** nested <= _MAX_VISITS:
        return find_here(path, value)
    try:
        found: list[Json] = await evaluators.run(find_here, path, value)
    except EvaluationStopped as error:
        raise QueryStoppedError(str(error)) from None
    return found


def find_here(path: str, value: Json) -> list[Json]:
    try:
        found: list[Json] = compile_path(path).findall(value)
    except RecursionError:
        raise QueryStoppedError("the value is nested too deeply") from None
    return found


def pattern_size(pattern: str) -> int:
    """Return the length of a regular expression when `(ab){3}` is written as `ababab`."""
    groups, last = [0], 0
    for piece in _PIECE.finditer(pattern):
        if piece[1]:
            times = max(1, int(piece[1]), int(piece[2] or 0))
            groups[-1] += last * (times - 1)
            last *= times
        elif piece[0] == "(":
            groups.append(0)
        elif piece[0] == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        else:
            last = 1
            groups[-1] += 1
    return min(sum(groups), _LARGEST_PATTERN)
