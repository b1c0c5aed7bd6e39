"""Page tokens: where a listing began, how far it has come, and in which of its two phases it is.

The order is by status time, and that changes while a client turns pages. So a listing remembers when it began
(`as_of`): the first phase walks back from there; the second one gives out, in the order of their ids, the tasks
that changed since, because those have left the part of the order that is still to be walked.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from errands.errors import InvalidParamsError


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """A page token, read."""

    #: When the listing began.
    as_of: int
    #: The last task given out: its status time (first phase) and id.
    status_at: int
    task_id: str
    #: The second phase: changed since `as_of`.
    changed: bool = False

    def token(self) -> str:
        """The token for the client."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).rstrip(b"=").decode()


def read_token(token: str) -> Cursor:
    """Raises `InvalidParamsError` for anything that `Cursor.token` did not make."""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=Cursor)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise InvalidParamsError("The page token is not valid; start again without one", field="pageToken") from None
