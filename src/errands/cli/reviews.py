"""`errands reviews`: list, approve and deny pending reviews, in a store or through the operator API of a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from rich.cells import cell_len, set_cell_size
from typer import Option

from errands.cli.failures import UsageError, command
from errands.cli.operator_client import OperatorClient
from errands.cli.options import (
    AgentName,
    AllowOrigins,
    ApiKeyOption,
    AsJson,
    Headers,
    Limit,
    RemoteAgent,
    ServerUrl,
    Storage,
    TaskId,
    Token,
    existing_store,
    server_named,
)
from errands.cli.printing import clean, duration, note, one_line, out, print_json
from errands.clock import from_iso, stored_to_iso, system_clock
from errands.errors import InvalidParamsError, PermissionDeniedError, TaskNotFoundError, UnsupportedOperationError
from errands.model.core import TaskState
from errands.policy.reviews import Review, ReviewDesk, reviewer
from errands.runtime.journal import Journal

#: The most characters of a subject that are shown, and the fewest that must fit beside the other columns.
_WORDS, _ROOM = 100, 40
#: The most reviews that the operator API lists.
_MOST = 1000

By = Annotated[
    str | None, Option("--by", metavar="USER", help="The reviewer who answers. With --url the credentials say that.")
]
Comment = Annotated[str, Option("--comment", metavar="TEXT", help="Say why.", show_default=False)]
Since = Annotated[
    str | None,
    Option(
        "--since",
        metavar="TIME",
        help="Answer only the review of this time, as `errands reviews list --json` shows it, not a later one.",
    ),
]


@command
async def list_reviews(
    storage: Storage = None,
    agent: AgentName = None,
    by: Annotated[str | None, Option(metavar="USER", help="Only reviews that this user is asked for.")] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
    url: ServerUrl = None,
    header: Headers = None,
    token: Token = None,
    api_key: ApiKeyOption = None,
    allow_origin: AllowOrigins = None,
) -> None:
    """List the tasks that wait for a review, the longest waiting first.

    Example:

        errands reviews list --by bob@example.com
    """
    remote = server_named(url, storage, header, token, api_key, allow_origin)
    if remote is None:
        async with existing_store(storage) as engine:
            now = engine.clock()
            # One more than wanted shows whether there are more.
            found = await ReviewDesk(Journal(engine)).list(agent=agent, user=by, limit=limit + 1)
    else:
        async with OperatorClient(remote) as operator:
            now = system_clock()
            user = None if by is None else reviewer(by)
            shows = agent is None and user is None
            rows = await operator.get("reviews", list[_PendingReview], limit=min(limit + 1, _MOST) if shows else _MOST)
        reviews = [row.review() for row in rows]
        found = [one for one in reviews if agent in (None, one.agent) and user in (None, one.user)]
    shown = found[:limit]
    if as_json:
        print_json([_document(review) for review in shown])
    elif shown:
        console = out()
        for line in lines(shown, now, console.width):
            console.print(line)
    else:
        note("Nothing waits for a review.")
    if len(found) > limit:
        note(f"There are more; --limit {limit * 5} shows them.", "dim")


@command
async def approve_review(
    task_id: TaskId,
    by: By = None,
    comment: Comment = "",
    since: Since = None,
    storage: Storage = None,
    as_json: AsJson = False,
    url: ServerUrl = None,
    header: Headers = None,
    token: Token = None,
    api_key: ApiKeyOption = None,
    allow_origin: AllowOrigins = None,
) -> None:
    """Approve the review that a task waits for. The task continues.

    Example:

        errands reviews approve TASK_ID --by bob@example.com
    """
    remote = server_named(url, storage, header, token, api_key, allow_origin)
    await _answer(remote, storage, task_id, True, by, comment, since, as_json)


@command
async def deny_review(
    task_id: TaskId,
    by: By = None,
    comment: Comment = "",
    since: Since = None,
    storage: Storage = None,
    as_json: AsJson = False,
    url: ServerUrl = None,
    header: Headers = None,
    token: Token = None,
    api_key: ApiKeyOption = None,
    allow_origin: AllowOrigins = None,
) -> None:
    """Deny the review that a task waits for. The task continues without the reviewed call.

    Example:

        errands reviews deny TASK_ID --by bob@example.com
    """
    remote = server_named(url, storage, header, token, api_key, allow_origin)
    await _answer(remote, storage, task_id, False, by, comment, since, as_json)


async def _answer(
    remote: RemoteAgent | None,
    storage: str | None,
    task_id: str,
    approved: bool,
    by: str | None,
    comment: str,
    since: str | None,
    as_json: bool,
) -> None:
    try:
        began = None if since is None else from_iso(since)
    except (ValueError, OverflowError):
        raise UsageError(f"--since must be a time such as 2026-01-31T12:00:00.000Z, not {since!r}") from None
    try:
        if remote is not None:
            if by is not None:
                raise UsageError("with --url the server knows by your credentials who answers; leave --by out")
            async with OperatorClient(remote) as operator:
                body = {"approved": approved, "comment": comment, "since": began}
                row = await operator.post(f"reviews/{quote(task_id, safe='')}", body, _AnsweredRow)
                state = TaskState.parse(row.state).value
        elif by is None:
            raise UsageError("say who answers with --by USER, or name a server with --url")
        else:
            async with existing_store(storage) as engine:
                desk = ReviewDesk(Journal(engine))
                state = (await desk.answer(task_id, approved, by=by, comment=comment, since=began)).state.value
    except (InvalidParamsError, PermissionDeniedError, TaskNotFoundError, UnsupportedOperationError) as error:
        raise UsageError(f"{error}. List pending reviews with `errands reviews list`") from None
    if as_json:
        print_json({"taskId": task_id, "approved": approved, "by": by, "state": state})
    else:
        word = "approved" if approved else "denied"
        out().print(f"Task {clean(task_id)} is {word}; it continues as soon as its server claims it.")


class _PendingReview(msgspec.Struct, rename="camel"):
    """A pending review, as the operator API shows it."""

    task_id: str
    context_id: str | None
    agent: str
    owner: str
    tenant: str
    user: str
    since: int
    function: str | None
    subject: Any
    text: str

    def review(self) -> Review:
        return Review(**msgspec.structs.asdict(self) | {"function": self.function or ""})


class _AnsweredRow(msgspec.Struct):
    """The task whose review was answered, as the operator API shows it."""

    state: str


def _document(review: Review) -> dict[str, object]:
    return {
        "taskId": review.task_id,
        "contextId": review.context_id,
        "agent": review.agent,
        "owner": review.owner,
        "tenant": review.tenant,
        "user": review.user,
        "since": stored_to_iso(review.since),
        "function": review.function,
        "subject": review.subject,
    }


def lines(reviews: list[Review], now: int, width: int) -> Iterator[str]:
    """Yield the lines of the table. In a narrow terminal the subject is on a second line, and ids stay whole."""
    rows = [("TASK", "REVIEWER", "SINCE", "AGENT", "SUBJECT")]
    for review in reviews:
        words = review.text
        if review.subject is not None:
            is_text = isinstance(review.subject, str)
            words = review.subject if is_text else msgspec.json.encode(review.subject).decode()
            words = f"{review.function} {words}".lstrip()
        waiting = duration(now - review.since)
        rows.append((clean(review.task_id), clean(review.user), waiting, clean(review.agent), words))
    *sizes, _ = (max(map(cell_len, column)) for column in zip(*rows, strict=True))
    room = width - sum(size + 2 for size in sizes)
    for *cells, words in rows:
        line = "  ".join(set_cell_size(cell, size) for cell, size in zip(cells, sizes, strict=True))
        if room >= _ROOM:
            yield f"{line}  {one_line(words, min(room, _WORDS))}"
        else:
            yield line.rstrip()
            yield f"  {one_line(words, _WORDS)}"
