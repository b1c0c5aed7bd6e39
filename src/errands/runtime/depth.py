"""How far work has been handed down, told from server to server in the metadata of a message.

Anybody can write it. Whoever says too much has their own task hand less down; whoever says too little is as well off
as without it. Turns that wait lend their places to what was handed down more often (`WorkerAdapter.awaiting`).
"""

from __future__ import annotations

from typing import Any

#: In the metadata of the first message of a task that another agent has handed down: by how many it was, at least 1.
DEPTH = "errands/delegation-depth"
#: Nobody hands work down so often.
_DEEPEST = 1_000


def depth_metadata(depth: int) -> dict[str, Any]:
    return {DEPTH: depth}


def told_depth(metadata: dict[str, Any]) -> int:
    """What the sender of a message says in its metadata; 0 when they say nothing that makes sense."""
    told = metadata.get(DEPTH)
    if isinstance(told, float) and told.is_integer():
        # Some bindings have no other numbers.
        told = int(told)
    if not isinstance(told, int) or isinstance(told, bool):
        return 0
    return min(max(told, 0), _DEEPEST)
