"""Tools: what an agent can do, behind one port (`base`). `@tool` makes one from a Python function."""

from errands.agents.tools.base import Invocation, ToolError
from errands.agents.tools.python import tool

__all__ = ["Invocation", "ToolError", "tool"]
