"""Page tokens: where a listing began, how far it has come, and in which of its two phases it is.

The order is by status time, and that changes while a client turns pages. So a listing remembers when it began
(`as_of`): the first phase walks back from there; the second one gives out, in the order of their ids, the tasks
that changed since, because those have left the part of the order that is still to be walked.

A page is found before it is read, and may turn out to be too large: then it ends earlier, and its token leads on from
the last task that was read.

With some filters tasks can only be counted one by one. Such a listing is counted when it begins, and remembers that.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from errands.errors import InvalidParamsError
from errands.model.log import ListQuery


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """A page token, read."""

    #: When the listing began.
    as_of: int
    #: The last task given out: its status time (first phase) and id.
    status_at: int
    task_id: str
    #: The second phase: changed since `as_of`.
    changed: bool = False
    #: How many tasks there were when the listing began; None: they are counted again for each page.
    total: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None

    def at(self, status_at: int, task_id: str) -> Cursor:
        """On from this task, in the first phase."""
        return Cursor(self.as_of, status_at, task_id, total=self.total)

    def changed_after(self, task_id: str) -> Cursor:
        """On from this task, in the second phase."""
        return Cursor(self.as_of, 0, task_id, changed=True, total=self.total)

    def second_phase(self) -> Cursor:
        """Where the second phase goes on, or begins."""
        return self if self.changed else self.changed_after("")

    def counted(self, total: int, query: ListQuery) -> Cursor:
        """With the total, where the filters make counting a walk."""
        is_walk = query.context_id is not None or query.status_after is not None
        return msgspec.structs.replace(self, total=total) if is_walk else self

    def token(self) -> str:
        """The token for the client."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).rstrip(b"=").decode()


class Found(NamedTuple):
    """The tasks of a page before they are read."""

    #: Each task's place in the listing.
    places: list[Cursor]
    #: Whether the listing goes on after them.
    more: bool

    @classmethod
    def of(cls, cursor: Cursor, size: int, walked: Sequence[tuple[int, str]], changed: Sequence[str]) -> Found:
        """The page after `cursor`, from the status times and ids of the first phase and the ids of the second: one more
        than has room on it tells that there are more."""
        places = [cursor.at(status_at, task_id) for status_at, task_id in walked[:size]]
        places += [cursor.changed_after(task_id) for task_id in changed[: size - len(places)]]
        return cls(places, more=len(walked) + len(changed) > size)

    @property
    def ids(self) -> list[str]:
        return [place.task_id for place in self.places]

    def token(self, read: int) -> str:
        """For the page after the first so many tasks, "" when nothing follows them."""
        return self.places[read - 1].token() if self.more or read < len(self.places) else ""


def fitting(sizes: Iterable[int], most: int) -> int:
    """How many tasks of these sizes are read for one page: the first in any case, so that a listing goes on."""
    count = 0
    for size in sizes:
        most -= size
        if count and most < 0:
            break
        count += 1
    return count


def read_token(token: str) -> Cursor:
    """Raises `InvalidParamsError` for anything that `Cursor.token` did not make."""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=Cursor)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise InvalidParamsError("The page token is not valid; start again without one", field="pageToken") from None
