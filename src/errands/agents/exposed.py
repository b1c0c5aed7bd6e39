"""The values that an answer exposes, and why it is incomplete: written by agents from manifests.

Agents that delegate to them read these, and so does the command line.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from errands.model.core import Message, Part

#: The only key in the data of a part with exposed values, and a mark in its metadata.
EXPOSES = "exposes"
#: In the metadata of the answer: why the model ended it early.
INCOMPLETE = "incomplete"


def exposed_part(values: dict[str, Any]) -> Part:
    return Part(data={EXPOSES: values}, media_type="application/json", metadata={EXPOSES: True})


def exposed_values(part: Part) -> dict[str, Any] | None:
    """Return the values that a part exposes; None for other parts."""
    if not (part.metadata or {}).get(EXPOSES) or part.data is UNSET or not isinstance(part.data, dict):
        return None
    values = part.data.get(EXPOSES)
    return values if isinstance(values, dict) else None


def incomplete_reason(message: Message | None) -> str | None:
    """Return why an answer is incomplete: `length` or `content_filter`. None when it is complete."""
    reason = (message.metadata or {}).get(INCOMPLETE) if message is not None else None
    return reason if isinstance(reason, str) else None
