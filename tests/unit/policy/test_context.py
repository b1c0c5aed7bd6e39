"""The context object, folded from records."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from errands.policy.cel import Call, Session
from errands.policy.context_object import Context, replay
from errands.policy.records import (
    Answered,
    AnyRecord,
    CapabilityBegan,
    CapabilityErrored,
    CapabilityFinished,
    CapabilityRestricted,
    Decided,
    Ended,
    InputArrived,
    ModelCalled,
    OutputGiven,
    Waiting,
    decode,
    encode,
)
from tests.unit.policy.support import LATER, NOW, RUN, STARTED, errored, finished, restricted, said, value_of


def after(*records: AnyRecord) -> Any:
    return replay([STARTED, *records]).plain()


def test_the_lists_of_a_capability_are_in_the_order_of_the_calls_and_stay_aligned() -> None:
    record = after(
        finished("slack_post", "one", arguments={"n": 1}),
        restricted("slack_post", arguments={"n": 2}),
        errored("slack_post", arguments={"n": 3}),
        finished("slack_post", "four", arguments={"n": 4}),
    )["capabilities"]["slack_post"]
    assert record["outputs"] == ["one", None, None, "four"]
    assert record["inputs"] == [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]
    assert record["successful"] == [True, False, False, True]
    assert record["restricted"] == [False, True, False, False]
    assert record["errored"] == [False, False, True, False]
    assert (record["count_successful"], record["count_restricted"], record["count_errored"]) == (2, 1, 1)


def test_the_latest_output_is_the_last() -> None:
    context = after(finished("slack_post", "one"), finished("slack_post", "two"))
    assert value_of("c.cap.slack_post.outputs[0] + c.cap.slack_post.outputs.last()", context=context) == "onetwo"


def test_a_call_counts_when_it_is_over_and_not_when_it_begins() -> None:
    began = CapabilityBegan(at=NOW, call="1", function="slack_post")
    assert after(began)["capabilities"]["_meta"]["count"] == 0
    assert after(began, finished("slack_post"))["capabilities"]["_meta"]["count"] == 1


def test_every_call_counts_whoever_made_it_and_however_it_ended() -> None:
    context = after(finished("slack_post", caller="step"), restricted("slack_post"), errored("research_agent"))
    meta = context["capabilities"]["_meta"]
    assert meta == {
        "invocations": ["slack_post", "slack_post", "research_agent"],
        "count": 3,
        "delegation_count": 1,
    }


def test_a_call_of_a_step_takes_no_turn() -> None:
    assert after(finished("slack_post", caller="step"))["_history"] == {"turns": [], "turn_count": 0}


def test_a_delegation_that_reached_no_child_keeps_the_lists_aligned() -> None:
    context = after(restricted("research_agent"), finished("research_agent", task_id="child"))
    assert context["capabilities"]["research_agent"]["task_ids"] == ["", "child"]


def test_a_function_nobody_declared_gets_its_record_with_its_first_call() -> None:
    assert after(finished("surprise", 1))["capabilities"]["surprise"]["outputs"] == [1]


@pytest.mark.parametrize(
    ("records", "first"),
    [
        ([], True),
        ([restricted("slack_post")], True),
        ([errored("slack_post", executed=False)], True),
        ([errored("slack_post")], False),
        ([finished("slack_post")], False),
        ([finished("zendesk_fetch_ticket")], True),
    ],
)
def test_a_call_is_the_first_until_one_was_executed(records: list[AnyRecord], first: bool) -> None:
    assert replay([STARTED, *records]).is_first("slack_post") is first


def test_tokens_add_up_and_the_model_is_the_latest() -> None:
    llm = after(
        ModelCalled(at=NOW, model="a", prompt=1, completion=2), ModelCalled(at=NOW, model="b", prompt=10, completion=20)
    )["llm"]
    assert llm == {"model": "b", "tokens": {"total": 33, "prompt": 11, "completion": 22}}


def test_every_input_keeps_its_own_values() -> None:
    context = after(
        InputArrived(at=NOW, values=said("one", ticket_id=1)), InputArrived(at=NOW, values=said("two", ticket_id=2))
    )
    assert value_of("context.input.map(x, x.ticket_id)", context=context) == [1, 2]
    assert context["_history"]["turns"] == ["input", "input"]


def test_a_number_too_large_for_the_language_does_not_spoil_the_context() -> None:
    assert value_of("context.capabilities.slack_post.outputs[0] > 1.0", context=after(finished("slack_post", 2**80)))


@pytest.mark.parametrize(
    "record",
    [
        CapabilityBegan(at=NOW, call="1", function="slack_post"),
        Decided(at=NOW, step="before[0]", action="assert", outcome="passed"),
        Waiting(at=NOW, call=Call("review", ("bob",)), session=Session(NOW)),
        Answered(at=NOW, call=Call("review", ("bob",)), value=True),
        Ended(at=NOW, reason="limit_exceeded"),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_that_says_nothing_about_the_context_leaves_what_is_shown(record: AnyRecord) -> None:
    context = Context(STARTED)
    shown = context.plain()
    context.take(record)
    assert context.plain() is shown


def test_a_context_is_made_plain_once_per_version() -> None:
    current = Context(STARTED)
    first = current.plain()
    current.take(Decided(at=NOW, step="before[0]", action="assert", outcome="passed"))
    assert current.plain() is first
    current.take(finished("slack_post"))
    assert current.plain()["capabilities"]["_meta"]["count"] == 1
    assert first["capabilities"]["_meta"]["count"] == 0


def test_a_task_starts_once_and_first() -> None:
    with pytest.raises(ValueError, match="first record"):
        replay([])
    with pytest.raises(ValueError, match="first record"):
        replay([finished("slack_post")])
    with pytest.raises(ValueError, match="only ever the first"):
        Context(STARTED).take(STARTED)


values = st.dictionaries(st.text(max_size=4), st.none() | st.integers() | st.text(max_size=4), max_size=3)
functions = st.sampled_from([*STARTED.functions, *STARTED.delegations, "undeclared"])
callers = st.sampled_from(["model", "step"])
common = {
    "at": st.just(LATER),
    "call": st.text(max_size=3),
    "function": functions,
    "arguments": values,
    "caller": callers,
}
records: st.SearchStrategy[AnyRecord] = st.one_of(
    st.builds(InputArrived, at=st.just(NOW), values=values),
    st.builds(OutputGiven, at=st.just(NOW), values=values),
    st.builds(
        ModelCalled,
        at=st.just(NOW),
        model=st.text(max_size=3),
        prompt=st.integers(0, 99),
        completion=st.integers(0, 99),
    ),
    st.builds(CapabilityBegan, **common),
    st.builds(CapabilityFinished, **common, output=values, task_id=st.none() | st.text(max_size=3)),
    st.builds(CapabilityErrored, **common, error=st.text(max_size=3), executed=st.booleans()),
    st.builds(CapabilityRestricted, **common, reason=st.text(max_size=3)),
)


@given(st.lists(records, max_size=12))
def test_the_numbers_of_a_context_agree_with_its_lists(log: list[AnyRecord]) -> None:
    seen = replay([STARTED, *log]).plain()
    meta = seen["capabilities"].pop("_meta")
    assert meta["count"] == len(meta["invocations"])
    assert seen["_history"]["turn_count"] == len(seen["_history"]["turns"])
    assert seen["llm"]["tokens"]["total"] == seen["llm"]["tokens"]["prompt"] + seen["llm"]["tokens"]["completion"]
    for name, record in seen["capabilities"].items():
        lengths = {len(value) for value in record.values() if isinstance(value, list)}
        assert lengths == {meta["invocations"].count(name)}
        outcomes = list(zip(record["successful"], record["errored"], record["restricted"], strict=True))
        assert all(sum(outcome) == 1 for outcome in outcomes)
        assert record["count_successful"] == sum(record["successful"])
        assert record["count_errored"] == sum(record["errored"])
        assert record["count_restricted"] == sum(record["restricted"])
    assert meta["delegation_count"] == meta["invocations"].count("research_agent")


@given(st.lists(records, max_size=8))
def test_a_log_that_was_stored_gives_the_same_context(log: list[AnyRecord]) -> None:
    stored = [decode(encode(record)) for record in [STARTED, *log]]
    assert stored == [STARTED, *log]
    assert replay(stored).plain() == replay([STARTED, *log]).plain()


@given(st.lists(records, max_size=8))
def test_a_context_that_moves_shows_the_same_as_one_made_anew(log: list[AnyRecord]) -> None:
    context = Context(STARTED)
    for index, record in enumerate(log, 1):
        context.take(record)
        assert context.plain() == replay([STARTED, *log[:index]]).plain()


@given(st.lists(records, max_size=6), records)
def test_what_was_shown_never_changes(log: list[AnyRecord], record: AnyRecord) -> None:
    context = replay([STARTED, *log])
    shown = context.plain()
    before = msgspec.json.encode(shown)
    context.take(record)
    assert msgspec.json.encode(shown) == before


def test_every_record_of_a_run_says_what_it_is() -> None:
    kinds = [msgspec.json.decode(encode(record))["record"] for record in RUN]
    assert kinds == ["started", "input", "llm", "finished", "llm", "finished", "finished", "llm", "output"]


def test_a_long_log_is_folded_in_a_time_that_grows_with_its_length() -> None:
    def seconds(rounds: int) -> float:
        inputs = [InputArrived(at=NOW, values=said(str(n))) for n in range(rounds)]
        calls = [finished("slack_post", n) for n in range(rounds)]
        records = [STARTED, *(record for pair in zip(inputs, calls, strict=True) for record in pair)]
        began = time.thread_time()
        context = replay(records)
        taken = time.thread_time() - began
        assert context.capabilities["slack_post"].outputs == list(range(rounds))
        assert context.turns == ["input", "capability"] * rounds
        return taken

    # Sixteen times as much; a copy of all lists for each record would take 256 times as long.
    assert min(seconds(8_000) for _ in range(3)) < 80 * min(seconds(500) for _ in range(3))
