"""What a JSONPath finds in an answer."""

from __future__ import annotations

from errands.agents.manifests.json_path import JsonPathError, QueryStoppedError, compile_path, find
from errands.agents.tools.base import BrokenToolError, ToolError
from errands.policy.cel.values import Json


async def select(path: str, value: Json) -> Json:
    """The value itself when it can only be one, otherwise the list of all. Raises `ToolError` when one is missing."""
    try:
        query = compile_path(path)
        found = await find(path, value)
    except JsonPathError as error:
        raise BrokenToolError(f"{path} is no JSONPath ({error})") from None
    except QueryStoppedError as error:
        raise ToolError(f"{path} cannot be looked up in the answer: {error}") from None
    if not query.singular_query():
        return found
    if not found:
        raise ToolError(f"the answer has nothing at {path}")
    return found[0]
