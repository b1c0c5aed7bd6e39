"""How a backend finds what the manifest says about the action it runs."""

from __future__ import annotations

from typing import TypeVar

from errands.agents.manifests.documents import Action, Document, Tool
from errands.agents.manifests.functions import DISCOVERING, backend
from errands.agents.tools.base import BrokenToolError

D = TypeVar("D", bound=Document)


def action_named(tool: Tool, name: str | None) -> Action | None:
    return next((action for action in tool.actions if action.name == name), None)


def execution(tool: Tool, action: str | None) -> tuple[str, Document]:
    """The backend of an action and its configuration; without an action, of what brings the tool's actions.

    Raises `BrokenToolError` for an action that the tool no longer has.
    """
    if found := action_named(tool, action):
        return backend(tool, found)
    for name in DISCOVERING if action is None else ():
        document = getattr(tool, name)
        if document is not None:
            return name, document
    raise BrokenToolError(f"the tool {tool.name} has no action {action}")


def configuration(tool: Tool, action: str | None, kind: type[D]) -> D:
    """What the manifest says about an action, for the backend of `kind`."""
    _, document = execution(tool, action)
    if not isinstance(document, kind):
        raise BrokenToolError(f"the action {action} of {tool.name} is not run by this backend")
    return document
