"""The marks that errands leaves in the metadata of messages and parts."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from errands.model.core import Message, Part

#: Marks the question and the answer of a review. Clients must not use it.
REVIEW = "errands/review"
#: Marks a part with the values that an agent from a manifest exposes, and is the only key in its data.
EXPOSES = "exposes"
#: In the metadata of an answer: why the model ended it early.
INCOMPLETE = "incomplete"


def is_review(message: Message) -> bool:
    """Return whether the message belongs to a review and not to the conversation of user and agent."""
    return message.metadata is not None and REVIEW in message.metadata


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
