"""`errands reviews`: what waits for somebody's review, and the answers. It asks the store and not an agent."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.table import Table

from errands.cli.failures import ExitCode, UsageError, run
from errands.cli.options import AsJson, TaskId
from errands.cli.stores import Agent, Storage, existing
from errands.cli.terminal import clean, duration, err, one_line, out, print_json
from errands.clock import to_iso
from errands.errors import A2AError
from errands.runtime.journal import Journal
from errands.runtime.reviews import Review, ReviewDesk

OfUser = Annotated[str | None, typer.Option("--by", metavar="USER", help="Only what this user is to review.")]
By = Annotated[str, typer.Option("--by", metavar="USER", help="Who answers: the one who is asked.", show_default=False)]
Comment = Annotated[str, typer.Option("--comment", metavar="TEXT", help="Say why.", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Show at most so many.")]


def list_reviews(
    storage: Storage = None, agent: Agent = None, by: OfUser = None, limit: Limit = 100, as_json: AsJson = False
) -> None:
    """List the tasks that wait for a review, the longest waiting first.

    Example:

        errands reviews list --by bob@example.com
    """
    run(_list(storage, agent, by, limit, as_json))


def approve_review(
    task_id: TaskId, by: By, comment: Comment = "", storage: Storage = None, as_json: AsJson = False
) -> None:
    """Approve what a task waits for; it goes on.

    Example:

        errands reviews approve TASK_ID --by bob@example.com
    """
    run(_answer(storage, task_id, True, by, comment, as_json))


def deny_review(
    task_id: TaskId, by: By, comment: Comment = "", storage: Storage = None, as_json: AsJson = False
) -> None:
    """Deny what a task waits for; it goes on without.

    Example:

        errands reviews deny TASK_ID --by bob@example.com
    """
    run(_answer(storage, task_id, False, by, comment, as_json))


async def _list(storage: str | None, agent: str | None, by: str | None, limit: int, as_json: bool) -> ExitCode:
    async with existing(storage) as engine:
        now = engine.clock()
        # One more than wanted tells whether there are more.
        found = await ReviewDesk(Journal(engine)).list(agent=agent, user=by, limit=limit + 1)
    shown = found[:limit]
    if as_json:
        print_json([_document(review) for review in shown])
    elif shown:
        out().print(_table(shown, now), soft_wrap=False)
    else:
        err().print("Nothing waits for a review.")
    if len(found) > limit:
        err().print(f"There are more; --limit {limit * 5} shows them.", style="dim")
    return ExitCode.OK


async def _answer(storage: str | None, task_id: str, approved: bool, by: str, comment: str, as_json: bool) -> ExitCode:
    async with existing(storage) as engine:
        try:
            answered = await ReviewDesk(Journal(engine)).answer(task_id, approved, by=by, comment=comment)
        except A2AError as error:
            raise UsageError(f"{error}. See what waits with `errands reviews list`") from None
    word = "approved" if approved else "denied"
    if as_json:
        print_json({"taskId": task_id, "approved": approved, "by": by, "state": answered.state})
    else:
        out().print(f"Task {clean(task_id)} is {word}; it goes on as soon as its server takes it up.")
    return ExitCode.OK


def _document(review: Review) -> dict[str, object]:
    return {
        "taskId": review.task_id,
        "contextId": review.context_id,
        "agent": review.agent,
        "owner": review.owner,
        "tenant": review.tenant,
        "user": review.user,
        "since": to_iso(review.since),
        "function": review.function,
        "subject": review.subject,
    }


def _table(reviews: list[Review], now: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("TASK", "REVIEWER", "SINCE", "AGENT"):
        table.add_column(name, no_wrap=True)
    table.add_column("SUBJECT", no_wrap=True, overflow="ellipsis")
    for review in reviews:
        table.add_row(
            clean(review.task_id),
            clean(review.user),
            duration(now - review.since),
            clean(review.agent),
            one_line(_words(review), 100),
        )
    return table


def _words(review: Review) -> str:
    subject = review.subject
    if subject is None:
        return review.text
    words = subject if isinstance(subject, str) else msgspec.json.encode(subject).decode()
    return f"{review.function} {words}" if review.function else words
