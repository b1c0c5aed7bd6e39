"""How a turn of the loop can come to its end before the model has answered."""

from __future__ import annotations

from errands.policy.cel import Call, Session
from errands.policy.cel.values import Json
from errands.policy.records import Ended


class TaskOverError(Exception):
    """The task ends here, and the log says so already; see `Course.over`."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.detail)
        self.ended = ended


class AnswerBrokenError(Exception):
    """The model's answer broke off; the message says so to the caller, who can go on in the same task."""


class PausedError(Exception):
    """The task waits for somebody's review of `subject`, which nobody else may see yet when it is `held`.

    `function` is the one whose call it is about, if it is a call.
    """

    def __init__(
        self, key: str, call: Call, session: Session, subject: Json, *, held: bool = False, function: str | None = None
    ) -> None:
        super().__init__(f"{key} waits for {call}")
        self.key = key
        self.call = call
        self.session = session
        self.subject = subject
        self.held = held
        self.function = function
