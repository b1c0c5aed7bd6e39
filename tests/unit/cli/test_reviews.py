"""`errands reviews`: what waits in a store for somebody's review, and the answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from errands.cli.reviews import lines
from errands.engines.urls import engine_from_url
from errands.model.core import SETTLED_STATES
from errands.policy.reviews import Review
from tests.unit.cli.conftest import Errands, live
from tests.unit.reviews.support import ALICE, BOB, People, Reviewed, reviewed_server


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'tasks.db'}"


def ask(store: str, *texts: str, agent: Reviewed | None = None) -> list[str]:
    """The ids of tasks of Alice's that wait for a review; their server is gone."""

    async def run() -> list[str]:
        async with reviewed_server(agent or Reviewed(), store) as server, People(server)("alice") as (alice,):
            return [(await alice.send(text)).task_id for text in texts]

    return asyncio.run(run())


def goes_on(store: str, task_id: str) -> tuple[str, list[tuple[str, int]]]:
    """Which state the task comes to when its server is back, and the turns that takes."""
    agent = Reviewed()

    async def run() -> str:
        async with reviewed_server(agent, store) as server:
            stored = await server.engine.wait_for_state(task_id, ALICE, SETTLED_STATES, None)
            return stored.state.short

    return asyncio.run(run()), agent.turns


def states(store: str, task_id: str) -> str:
    async def run() -> str:
        async with engine_from_url(store) as engine:
            return (await engine.load(task_id, ALICE)).state.short

    return asyncio.run(run())


def test_it_lists_what_waits_the_longest_waiting_first(errands: Errands, store: str) -> None:
    first, second = ask(store, "pay 500", "pay\x1b[31m\n700")
    header, *rows = errands("reviews", "list", "--storage", store).stdout.splitlines()
    assert header.split() == ["TASK", "REVIEWER", "SINCE", "AGENT", "SUBJECT"]
    assert [row.split()[:2] for row in rows] == [[first, BOB], [second, BOB]]
    assert rows[0].rstrip().endswith('{"message":"pay 500"}')
    assert "Test agent" in rows[0]


def test_a_narrow_terminal_still_shows_ids_and_reviewers_whole_and_the_subject_below() -> None:
    review = Review(
        task_id="i" * 36,
        context_id=None,
        agent="support",
        owner="",
        tenant="",
        user=BOB,
        since=0,
        function="refunds_pay",
        subject={"amount": 500},
        text="",
    )
    assert list(lines([review], 3000, 80)) == [
        f"{'TASK':36}  REVIEWER         SINCE  AGENT",
        "  SUBJECT",
        f"{'i' * 36}  {BOB}  3s     support",
        '  refunds_pay {"amount":500}',
    ]
    assert list(lines([review], 3000, 120))[1] == f'{"i" * 36}  {BOB}  3s     support  refunds_pay {{"amount":500}}'


def test_json_has_every_field(errands: Errands, store: str) -> None:
    (task_id,) = ask(store, "pay 500")
    (review,) = json.loads(errands("reviews", "list", "--storage", store, "--json").stdout)
    assert review.pop("since") > "2026"
    assert review.pop("contextId")
    assert review == {
        "taskId": task_id,
        "agent": "Test agent",
        "owner": "id-of-alice",
        "tenant": "",
        "user": BOB,
        "function": "",
        "subject": {"message": "pay 500"},
    }


@pytest.mark.parametrize(
    ("options", "count"),
    [(["--by", "Bob@Example.com"], 2), (["--by", "carol"], 0), (["--agent", "Test agent"], 2), (["--agent", "X"], 0)],
)
def test_a_list_may_be_narrowed(errands: Errands, store: str, options: list[str], count: int) -> None:
    ask(store, "one", "two")
    assert len(json.loads(errands("reviews", "list", "--storage", store, "--json", *options).stdout)) == count


def test_a_limit_says_that_there_are_more(errands: Errands, store: str) -> None:
    ask(store, "one", "two", "three")
    result = errands("reviews", "list", "--storage", store, "--limit", "2")
    assert len(result.stdout.splitlines()) == 3
    assert "There are more; --limit 10" in result.stderr
    assert errands("reviews", "list", "--storage", store, "--limit", "3").stderr == ""


def test_nothing_to_review_is_said(errands: Errands, store: str) -> None:
    ask(store)
    result = errands("reviews", "list", "--storage", store)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "Nothing waits for a review.\n")
    assert errands("reviews", "list", "--storage", store, "--json").stdout == "[]\n"


@pytest.mark.parametrize(
    ("command", "word", "state"), [("approve", "approved", "completed"), ("deny", "denied", "rejected")]
)
def test_an_answer_lets_the_task_go_on_when_its_server_is_back(
    errands: Errands, store: str, command: str, word: str, state: str
) -> None:
    (task_id,) = ask(store, "pay 500")
    result = errands("reviews", command, task_id, "--by", BOB, "--comment", "so be it", "--storage", store)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"Task {task_id} is {word}; it continues as soon as its server claims it.\n"
    assert states(store, task_id) == "submitted"
    assert goes_on(store, task_id) == (state, [("pay 500", 1)])


def test_an_answer_is_told_as_json_to_programs(errands: Errands, store: str) -> None:
    (task_id,) = ask(store, "pay 500")
    result = errands("reviews", "approve", task_id, "--by", BOB, "--storage", store, "--json")
    assert json.loads(result.stdout) == {
        "taskId": task_id,
        "approved": True,
        "by": BOB,
        "state": "TASK_STATE_SUBMITTED",
    }


def test_somebody_else_cannot_answer(errands: Errands, store: str) -> None:
    (task_id,) = ask(store, "pay 500")
    result = errands("reviews", "approve", task_id, "--by", "carol", "--storage", store)
    assert result.exit_code == 2
    assert f"waits for a review by {BOB}, not by carol" in result.stderr
    assert states(store, task_id) == "input-required"


def test_what_was_answered_cannot_be_answered_again(errands: Errands, store: str) -> None:
    (task_id,) = ask(store, "pay 500")
    errands("reviews", "approve", task_id, "--by", BOB, "--storage", store)
    for other in (task_id, "no-such-task"):
        result = errands("reviews", "deny", other, "--by", BOB, "--storage", store)
        assert result.exit_code == 2
        assert "does not wait for a review" in result.stderr
        assert "errands reviews list" in result.stderr


def test_an_answer_may_be_for_the_review_that_was_read_alone(errands: Errands, store: str) -> None:
    (task_id,) = ask(store, "pay 500")
    (review,) = json.loads(errands("reviews", "list", "--storage", store, "--json").stdout)
    answer = ["reviews", "approve", task_id, "--by", BOB, "--storage", store, "--since"]
    later = errands(*answer, "2026-01-01T00:00:00.000Z")
    assert later.exit_code == 2
    assert "waits for another review by now" in later.stderr
    unreadable = errands(*answer, "yesterday")
    assert unreadable.exit_code == 2
    assert "--since must be a time such as" in unreadable.stderr
    assert states(store, task_id) == "input-required"
    assert errands(*answer, review["since"]).exit_code == 0
    assert states(store, task_id) == "submitted"


def test_an_answer_needs_a_name(errands: Errands, store: str) -> None:
    (task_id,) = ask(store, "pay 500")
    result = errands("reviews", "approve", task_id, "--storage", store)
    assert result.exit_code == 2
    assert "--by" in result.stderr


# Through a server


@pytest.mark.parametrize(("command", "state"), [("approve", "completed"), ("deny", "rejected")])
def test_a_server_takes_the_answer_of_the_reviewer_whose_credentials_they_are(
    errands: Errands, store: str, command: str, state: str
) -> None:
    (task_id,) = ask(store, "pay 500")
    with live(reviewed_server(Reviewed(), store)) as url:
        (row,) = json.loads(errands("reviews", "list", "--url", url, "--token", "bob", "--json").stdout)
        assert (row["taskId"], row["user"], row["subject"]) == (task_id, BOB, {"message": "pay 500"})
        assert (
            errands("reviews", "list", "--url", url, "--token", "bob", "--by", BOB.upper()).stdout.count("pay 500") == 1
        )
        assert "Nothing waits" in errands("reviews", "list", "--url", url, "--token", "carol").stderr
        refused = errands("reviews", command, task_id, "--url", url, "--token", "carol")
        assert (refused.exit_code, "errands reviews list" in refused.stderr) == (2, True)
        older = errands("reviews", command, task_id, "--url", url, "--token", "bob", "--since", "2026-01-01T00:00:00Z")
        assert (older.exit_code, "waits for another review by now" in older.stderr) == (2, True)
        answer = ["reviews", command, task_id, "--url", url, "--token", "bob", "--comment", "so be it"]
        assert errands(*answer, "--since", row["since"]).exit_code == 0
        again = errands(*answer)
        assert again.exit_code == 2
        assert goes_on(store, task_id)[0] == state


def test_with_a_server_the_credentials_say_who_answers(errands: Errands) -> None:
    result = errands("reviews", "approve", "t", "--url", "http://localhost:1", "--by", "bob")
    assert (result.exit_code, "leave --by out" in result.stderr) == (2, True)


def test_a_server_whose_operator_api_is_off_says_so(errands: Errands, store: str) -> None:
    (task_id,) = ask(store, "pay 500")
    with live(reviewed_server(Reviewed(), store, console="off")) as url:
        result = errands("reviews", "approve", task_id, "--url", url, "--token", "bob")
    assert (result.exit_code, "ERRANDS_CONSOLE" in result.stderr) == (3, True)


@pytest.mark.parametrize("arguments", [["list"], ["approve", "t", "--by", "bob"], ["deny", "t", "--by", "bob"]])
def test_memory_cannot_be_reached_and_a_store_is_not_made(
    errands: Errands, tmp_path: Path, arguments: list[str]
) -> None:
    memory = errands("reviews", *arguments, "--storage", "memory")
    assert (memory.exit_code, "only the server itself can read" in memory.stderr) == (2, True)
    missing = errands("reviews", *arguments, "--storage", f"sqlite:///{tmp_path / 'none.db'}")
    assert (missing.exit_code, "name the store with --storage" in missing.stderr) == (2, True)
    assert not (tmp_path / "none.db").exists()
