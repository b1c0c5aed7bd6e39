"""The values that an agent exposes beside its answer: a data part under a mark of ours.

Written by agents from a manifest; read by agents that use them, and by the command line.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from errands.model.core import Part

#: The only key of the part's data, and in its metadata that it is one.
EXPOSES = "exposes"


def exposed_part(values: dict[str, Any]) -> Part:
    return Part(data={EXPOSES: values}, media_type="application/json", metadata={EXPOSES: True})


def exposed_values(part: Part) -> dict[str, Any] | None:
    """What a part exposes; None for one that is something else."""
    if not (part.metadata or {}).get(EXPOSES) or part.data is UNSET or not isinstance(part.data, dict):
        return None
    values = part.data.get(EXPOSES)
    return values if isinstance(values, dict) else None
