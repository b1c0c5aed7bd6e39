"""From a message of the protocol to an input of the agent: what was said, and the agent's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from errands.agents.loop.plan import Plan
from errands.agents.manifests.functions import MESSAGE
from errands.model.core import Message
from errands.runtime.run import content_part


def read_input(plan: Plan, message: Message, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """The input that a message is; parameters that it does not give are as they were `before`.

    An agent with parameters takes them from data parts that are objects. Raises `ArgumentsError`.
    """
    said: list[dict[str, Any]] = []
    given: dict[str, Any] = {}
    for part in message.parts:
        if plan.takes_parameters and part.data is not UNSET and isinstance(part.data, dict):
            given |= part.data
        else:
            said.append(content_part(part))
    known = {name: value for name, value in (before or {}).items() if name != MESSAGE}
    values = {**known, **{name: value for name, value in given.items() if name != MESSAGE}}
    if said:
        values[MESSAGE] = said
    return plan.inputs.resolve(values)
