"""The allow list: which values a task has used for the parameters of each tool, folded from its records. Pure.

Filters of events compare with it, so that a task hears only of what it deals with. errands has no events yet; the list
is kept in the log all the same, so that tasks of today are complete then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from errands.policy.cel.values import Json
from errands.policy.records import AllowListSealed, AnyRecord, CapabilityBegan

_ENCODER = msgspec.json.Encoder(order="sorted")


class AllowList:
    """`tools` says which tool a function belongs to."""

    def __init__(self, tools: Mapping[str, str], records: Iterable[AnyRecord] = ()) -> None:
        self._tools = tools
        self._sealed: dict[tuple[str, str], list[Json]] = {}
        #: By their JSON, so that each is there once.
        self._used: dict[tuple[str, str], dict[bytes, Json]] = {}
        for record in records:
            self.take(record)

    def take(self, record: AnyRecord) -> None:
        """A call that the model made adds its arguments; what is bound was sealed when the task started."""
        if isinstance(record, AllowListSealed):
            self._sealed |= {
                (tool, name): values for tool, names in record.tools.items() for name, values in names.items()
            }
        elif isinstance(record, CapabilityBegan) and record.caller != "step" and record.function in self._tools:
            tool = self._tools[record.function]
            for name, value in record.arguments.items():
                self._used.setdefault((tool, name), {})[_ENCODER.encode(value)] = value

    def values(self, tool: str, parameter: str) -> list[Json]:
        """What an event may have in this place; nothing when the list is empty."""
        place = (tool, parameter)
        return self._sealed[place] if place in self._sealed else list(self._used.get(place, {}).values())
