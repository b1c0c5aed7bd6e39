"""Regular expressions of documents, matched by RE2 in linear time, whatever text they meet."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from errands.agents.manifests.extra import from_extra


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
