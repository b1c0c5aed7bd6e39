"""What a JSONPath finds in an answer."""

from __future__ import annotations

from errands.agents.manifests.json_path import JsonPathError, compile_path
from errands.agents.tools.base import BrokenToolError, ToolError
from errands.policy.cel.values import Json


def select(path: str, value: Json) -> Json:
    """The value itself when it can only be one, otherwise the list of all. Raises `ToolError` when one is missing."""
    try:
        query = compile_path(path)
    except JsonPathError as error:
        raise BrokenToolError(f"{path} is no JSONPath ({error})") from None
    found = query.findall(value)
    if not query.singular_query():
        return found
    if not found:
        raise ToolError(f"the answer has nothing at {path}")
    return found[0]
