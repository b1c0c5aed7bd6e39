"""JSONPath as RFC 9535 has it, by python-jsonpath in its strict form."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from errands.agents.manifests.extra import from_extra


class JsonPathError(ValueError):
    """This is no JSONPath; the message says why."""


@lru_cache(maxsize=256)
def compile_path(path: str) -> Any:
    """The query of a path. Raises `JsonPathError`."""
    library = from_extra("jsonpath")
    try:
        return library.JSONPathEnvironment(strict=True).compile(path)
    except library.JSONPathError as error:
        raise JsonPathError(str(error).partition("\n")[0]) from None
