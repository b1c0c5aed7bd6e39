"""What an agent tells beside its answer, under marks of ours: the values that it exposes, and that it is incomplete.

Written by agents from a manifest; read by agents that use them, and by the command line.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from errands.model.core import Message, Part

#: The only key of the part's data, and in its metadata that it is one.
EXPOSES = "exposes"
#: In the metadata of the answer: why the model's words end before their end.
INCOMPLETE = "incomplete"


def exposed_part(values: dict[str, Any]) -> Part:
    return Part(data={EXPOSES: values}, media_type="application/json", metadata={EXPOSES: True})


def exposed_values(part: Part) -> dict[str, Any] | None:
    """What a part exposes; None for one that is something else."""
    if not (part.metadata or {}).get(EXPOSES) or part.data is UNSET or not isinstance(part.data, dict):
        return None
    values = part.data.get(EXPOSES)
    return values if isinstance(values, dict) else None


def incomplete_reason(message: Message | None) -> str | None:
    """Why an answer is not whole: `length`, `content_filter`. None for one that is."""
    reason = (message.metadata or {}).get(INCOMPLETE) if message is not None else None
    return reason if isinstance(reason, str) else None
