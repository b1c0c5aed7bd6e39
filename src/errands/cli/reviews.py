"""`errands reviews`: list, approve and deny pending reviews. The commands use the store, not an agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from rich.cells import cell_len, set_cell_size
from typer import Option

from errands.cli.failures import UsageError, command
from errands.cli.options import AgentName, AsJson, Limit, Storage, TaskId, existing_store
from errands.cli.printing import clean, duration, note, one_line, out, print_json
from errands.clock import from_iso, stored_to_iso
from errands.errors import A2AError
from errands.policy.reviews import Review, ReviewDesk
from errands.runtime.journal import Journal

#: The most characters of a subject that are shown, and the fewest that must fit beside the other columns.
_WORDS, _ROOM = 100, 40

By = Annotated[str, Option("--by", metavar="USER", help="The reviewer who answers.")]
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
) -> None:
    """List the tasks that wait for a review, the longest waiting first.

    Example:

        errands reviews list --by bob@example.com
    """
    async with existing_store(storage) as engine:
        now = engine.clock()
        # One more than wanted shows whether there are more.
        found = await ReviewDesk(Journal(engine)).list(agent=agent, user=by, limit=limit + 1)
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
    by: By,
    comment: Comment = "",
    since: Since = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Approve the review that a task waits for. The task continues.

    Example:

        errands reviews approve TASK_ID --by bob@example.com
    """
    await _answer(storage, task_id, True, by, comment, since, as_json)


@command
async def deny_review(
    task_id: TaskId,
    by: By,
    comment: Comment = "",
    since: Since = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Deny the review that a task waits for. The task continues without the reviewed call.

    Example:

        errands reviews deny TASK_ID --by bob@example.com
    """
    await _answer(storage, task_id, False, by, comment, since, as_json)


async def _answer(
    storage: str | None, task_id: str, approved: bool, by: str, comment: str, since: str | None, as_json: bool
) -> None:
    try:
        began = None if since is None else from_iso(since)
    except (ValueError, OverflowError):
        raise UsageError(f"--since must be a time such as 2026-01-31T12:00:00.000Z, not {since!r}") from None
    async with existing_store(storage) as engine:
        try:
            answered = await ReviewDesk(Journal(engine)).answer(task_id, approved, by=by, comment=comment, since=began)
        except A2AError as error:
            raise UsageError(f"{error}. List pending reviews with `errands reviews list`") from None
    if as_json:
        print_json({"taskId": task_id, "approved": approved, "by": by, "state": answered.state})
    else:
        word = "approved" if approved else "denied"
        out().print(f"Task {clean(task_id)} is {word}; it continues as soon as its server claims it.")


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
