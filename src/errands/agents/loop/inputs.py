"""From a message of the protocol to an input of the agent: what was said, and the agent's parameters."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET

from errands.agents.loop.plan import Plan
from errands.agents.manifests.functions import MESSAGE, ArgumentsError
from errands.agents.models.base import Said, UserSaid
from errands.model.core import Message, Part
from errands.policy.cel.values import TOO_MUCH, Json, is_cut
from errands.policy.run import content_part, inputs

#: Begins the address of a file whose bytes came with a message and stay there.
_IN_MESSAGE = "message:"


async def read_input(plan: Plan, key: str, message: Message, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """The input that a message is; parameters that it does not give are as they were `before`.

    Records know the message by `key`. An agent with parameters takes them from data parts that are objects. Raises
    `ArgumentsError`.
    """
    said: list[dict[str, Any]] = []
    given: dict[str, Any] = {}
    for index, part in enumerate(message.parts):
        if plan.takes_parameters and part.data is not UNSET and isinstance(part.data, dict):
            given |= part.data
            continue
        content = content_part(part)
        if part.raw is not None:
            content["file"] = f"{_IN_MESSAGE}{key}/{index}"
        said.append(content)
    known = {name: value for name, value in (before or {}).items() if name != MESSAGE}
    values = {**known, **{name: value for name, value in given.items() if name != MESSAGE}}
    if said:
        values[MESSAGE] = said
    if is_cut(values):
        raise ArgumentsError(f"message: it has {TOO_MUCH}; send less at once, or send it as a text or a file")
    return await plan.inputs.resolve(values)


def with_files(said: Sequence[Said], history: Sequence[Message]) -> tuple[Said, ...]:
    """The conversation with the bytes of files that came with messages."""
    files = {
        f"{_IN_MESSAGE}{key}/{index}": part
        for key, message in inputs(history)
        for index, part in enumerate(message.parts)
        if part.raw is not None
    }
    if not files:
        return tuple(said)
    return tuple(
        UserSaid([_filled(part, files) for part in one.parts]) if isinstance(one, UserSaid) else one for one in said
    )


def _filled(part: dict[str, Json], files: Mapping[str, Part]) -> dict[str, Json]:
    held = files.get(str(part.get("file")))
    if held is None or held.raw is None:
        return part
    return {**part, "file": f"data:{part['mimeType']};base64,{base64.b64encode(held.raw).decode()}"}
