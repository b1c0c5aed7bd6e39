"""The two messages of a review: the question, and the answer of the one user who is asked.

Both stand in the task's history under a mark of ours, so that neither counts as something that was said to the agent.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from errands.errors import InvalidParamsError
from errands.model.base import encode
from errands.model.core import Message, Part, Role, text_of
from errands.policy.cel.session import Call
from errands.runtime.journal import new_id

#: The key in a message's metadata that says it belongs to a review. Clients may not use it.
REVIEW = "errands/review"

#: What is shown of a subject at most: as data, in bytes of JSON, and in words.
SUBJECT_BYTES = 16_000
SUBJECT_WORDS = 1_000

_JSON = "application/json"
_ANSWER = re.compile(r"\s*(approved?|yes|deny|denied|no)(?![^\s:;,.!-])[\s:;,.!-]*(.*)", re.IGNORECASE | re.DOTALL)
_HOW = (
    'answer with a text that begins with "approve" or "deny", or with a data part such as '
    '{"approved": true, "comment": "looks good"}'
)


class Verdict(NamedTuple):
    """The answer to a review."""

    approved: bool
    comment: str = ""

    def __str__(self) -> str:
        word = "approved" if self.approved else "denied"
        return f"{word}: {self.comment}" if self.comment else word


class _DataAnswer(msgspec.Struct, forbid_unknown_fields=True):
    approved: bool
    comment: str | None = None


def reviewer(user: str) -> str:
    """The name of a user as reviews compare it: e-mail addresses are the same in capitals and small letters."""
    name = user.strip()
    return name.lower() if "@" in name else name


def reviewer_of(call: Call) -> str:
    """Whom `review(user)` asks. Raises `ValueError` when that is nobody."""
    user = call.arguments[0] if call.arguments else None
    if not isinstance(user, str) or not reviewer(user):
        raise ValueError(f"{call}: name the user who is to review, by id or e-mail address")
    return reviewer(user)


def is_review(message: Message) -> bool:
    """Whether it belongs to a review and not to the conversation of user and agent."""
    return message.metadata is not None and REVIEW in message.metadata


def asked_in(message: Message) -> str | None:
    """Whom a question of a review asks, as far as the message of whatever agent says so."""
    mark = (message.metadata or {}).get(REVIEW)
    user = mark.get("user") if isinstance(mark, dict) else None
    return user if isinstance(user, str) else None


def review_message(
    call: Call, subject: Any, *, task_id: str, context_id: str | None, function: str | None = None
) -> Message:
    """The question of `review(user)`, for `Turn.end`.

    `subject` is what is to be judged, as JSON: the arguments of a call of `function`, or something else.
    """
    user = reviewer_of(call)
    encoded = encode(subject)
    review = {"user": user, **({"function": function} if function else {}), "subject": subject}
    if len(encoded) > SUBJECT_BYTES:
        review |= {"subject": encoded[:SUBJECT_BYTES].decode(errors="ignore") + "…", "truncated": True}
    words = subject if isinstance(subject, str) else encoded.decode()
    if len(words) > SUBJECT_WORDS:
        words = words[:SUBJECT_WORDS] + "…"
    about = f"{function} {words}" if function else words
    text = f"Waiting for a review by {user}: {about}\nThe answer is approve or deny, and a comment if there is one."
    parts = [Part(text=text), Part(data={"review": review}, media_type=_JSON)]
    return _question(parts, {"user": user}, task_id, context_id)


def held_review_message(call: Call, *, task_id: str, context_id: str | None) -> Message:
    """The question about something that the task's owner must not see yet; see `reviews.revealed`."""
    user = reviewer_of(call)
    parts = [Part(text=f"Waiting for a review by {user}.")]
    return _question(parts, {"user": user, "held": True}, task_id, context_id)


def is_held(message: Message) -> bool:
    """Whether it asks about something that it does not show."""
    return is_review(message) and bool((message.metadata or {})[REVIEW].get("held"))


def _question(parts: list[Part], mark: dict[str, Any], task_id: str, context_id: str | None) -> Message:
    return Message(
        message_id=new_id(),
        role=Role.AGENT,
        parts=parts,
        task_id=task_id,
        context_id=context_id,
        metadata={REVIEW: mark},
    )


def verdict_message(
    verdict: Verdict, by: str, *, task_id: str, context_id: str | None, message_id: str = ""
) -> Message:
    """The answer as the history keeps it."""
    return Message(
        message_id=message_id or new_id(),
        role=Role.USER,
        parts=[Part(text=str(verdict))],
        task_id=task_id,
        context_id=context_id,
        metadata={REVIEW: {"user": by, "approved": verdict.approved}},
    )


def read_verdict(message: Message) -> Verdict:
    """The answer of a message: its data part, or else its text. Raises `InvalidParamsError` with how to answer."""
    answers = [part.data for part in message.parts if part.data is not UNSET]
    text = text_of(message.parts).strip()
    if answers:
        try:
            (answer,) = (msgspec.convert(data, _DataAnswer) for data in answers)
        except (ValueError, msgspec.ValidationError):
            raise _unclear(message) from None
        return Verdict(answer.approved, (answer.comment or text).strip())
    match = _ANSWER.fullmatch(text)
    if match is None:
        raise _unclear(message)
    return Verdict(match[1].lower() in ("approve", "approved", "yes"), match[2].strip())


def _unclear(message: Message) -> InvalidParamsError:
    return InvalidParamsError(
        f"Task {message.task_id} waits for your review: {_HOW}. Nothing has changed",
        field="message.parts",
    )
