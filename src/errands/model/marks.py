"""Metadata keys by which errands marks messages that belong to it and not to the conversation."""

from __future__ import annotations

from errands.model.core import Message

#: Marks the question and the answer of a review. Clients must not use it.
REVIEW = "errands/review"


def is_review(message: Message) -> bool:
    """Return whether the message belongs to a review and not to the conversation of user and agent."""
    return message.metadata is not None and REVIEW in message.metadata
