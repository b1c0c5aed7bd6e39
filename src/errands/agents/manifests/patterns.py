"""Regular expressions of documents, matched by RE2 in linear time, whatever text they meet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from errands.agents.manifests.nodes import from_extra
from errands.policy.cel.effort import LONG
from errands.policy.cel.evaluators import EvaluationStopped, current_evaluators
from errands.policy.cel.values import Json

# patterns


class PatternError(ValueError):
    """RE2 cannot match this pattern; the message says why."""


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str, *, ignore_case: bool = False) -> Any:
    """Return the pattern as `re.compile` would; with `ignore_case`, a dot also matches a line break.

    Raises `PatternError`, also for look-around and back-references, which only backtracking can match.
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
        only_backtracking = reason.startswith(("invalid perl operator", "invalid escape sequence"))
        hint = "; look-around and back-references are not supported" if only_backtracking else ""
        raise PatternError(reason + hint) from None


# json_path

_MATCHING = ("match", "search")
#: What visiting one value costs, in units of `errands.policy.cel.effort`.
_VISIT = 1_000


class JsonPathError(ValueError):
    """This is no JSONPath; the message says why."""


class QueryStoppedError(ValueError):
    """A query could not be answered with this value."""


@lru_cache(maxsize=256)
def compile_path(path: str) -> Any:
    """The query of a path. Raises `JsonPathError`."""
    library = from_extra("jsonpath")
    environment = library.JSONPathEnvironment(strict=True)
    for name in _MATCHING:
        environment.function_extensions[name].check_cache = _compiled
    try:
        query = environment.compile(path)
        for pattern in _patterns(query):
            compile_pattern(pattern)
    except library.JSONPathError as error:
        raise JsonPathError(str(error).partition("\n")[0]) from None
    except PatternError as error:
        raise JsonPathError(str(error)) from None
    return query


async def find(path: str, value: Json) -> list[Json]:
    """Return all that a path finds. Raises `QueryStoppedError`.

    A filter or a descent inside another takes a time that grows with a power of the value's size: where that is much,
    a child process looks, and is stopped when it takes too long.
    """
    evaluators = current_evaluators()
    nested = path.count("..") + path.count("?")
    if evaluators is None or not nested or (len(msgspec.json.encode(value)) // 2) ** nested * _VISIT <= LONG:
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


def _compiled(pattern: str) -> Any:
    """A pattern that stands in the value itself matches nothing when it is wrong, as the RFC says."""
    try:
        return compile_pattern(pattern)
    except PatternError:
        return None


def _patterns(query: Any) -> Iterator[str]:
    """Yield the patterns that stand in a query."""
    waiting = [
        selector.expression
        for segment in query.segments
        for selector in segment.selectors
        if hasattr(selector, "expression")
    ]
    while waiting:
        expression = waiting.pop()
        waiting += expression.children()
        if getattr(expression, "name", None) in _MATCHING:
            pattern = getattr(expression.args[1], "value", None)
            if isinstance(pattern, str):
                yield pattern
