"""The timeline of a task: what a log looks like to a person."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from errands.clock import to_iso
from errands.model import core
from errands.model.base import encode
from errands.model.core import Artifact, Message, Part, Role, StreamResponse, TaskState
from errands.model.log import CancelRequest, Event, EventKind, Head, LeaseRecord, RequestOptions, Scope, StoredTask
from errands.policy import records
from errands.policy.cel.session import Call, Session
from errands.policy.timeline import MAX_SPANS, SHOWN, Timeline, TimelineFold, TimelineSpan
from errands.runtime.journal import status_update

START = 1_800_000_000_000
CALL: dict[str, Any] = {"call": "c1", "function": "refund", "arguments": {"amount": 500}}


def timeline_of(task: StoredTask, events: Iterable[Event], *, gap: bool = False, contents: bool = True) -> Timeline:
    fold = TimelineFold(contents=contents)
    fold.take(events)
    return fold.timeline(task, gap=gap)


class Log:
    """The log of a task. A second passes between two events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, kind: EventKind, data: bytes, lease: LeaseRecord | None = None) -> Log:
        version = len(self.events) + 1
        self.events.append(Event(version, kind, data, START + 1000 * version, lease))
        return self

    def begin(self, text: str = "refund my order") -> Log:
        message = Message(message_id="m1", role=Role.USER, parts=[Part(text=text)])
        status = core.TaskStatus(state=TaskState.SUBMITTED, timestamp=to_iso(START))
        task = core.Task(id="t", context_id="c", status=status, history=[message])
        return self.add("task", encode(StreamResponse(task=task)))

    def state(self, state: TaskState, text: str = "", lease: LeaseRecord | None = None) -> Log:
        said = Message(message_id=f"s{len(self.events)}", role=Role.AGENT, parts=[Part(text=text)]) if text else None
        return self.add("status", encode(status_update("t", "c", state, START, said)), lease)

    def leased(self, attempt: int = 1, worker: str = "one", cause: Any = "new") -> Log:
        return self.state(TaskState.WORKING, lease=LeaseRecord(attempt, worker, START + 30_000, cause))

    def note(self, *found: records.AnyRecord) -> Log:
        for record in found:
            self.add("record", records.encode(record))
        return self

    def chunk(self, text: str, artifact: str = "answer", *, append: bool = True, last: bool = False) -> Log:
        update = core.TaskArtifactUpdateEvent(
            "t", "c", Artifact(artifact_id=artifact, parts=[Part(text=text)]), append=append, last_chunk=last
        )
        return self.add("artifact", encode(StreamResponse(artifact_update=update)))

    @property
    def now(self) -> str:
        """The time of the next event."""
        return to_iso(START + 1000 * (len(self.events) + 1))

    def timeline(self, **options: Any) -> Timeline:
        return timeline_of(stored(len(self.events)), self.events, **options)


def stored(version: int, **head: Any) -> StoredTask:
    task = core.Task(id="t", context_id="c", status=core.TaskStatus(state=TaskState.WORKING))
    return StoredTask(task=task, head=Head(version=version, state=TaskState.WORKING, **head), scope=Scope(agent="a"))


def lane(timeline: Timeline, name: str) -> list[TimelineSpan]:
    return [span for span in timeline.spans if span.lane == name]


def only(timeline: Timeline, name: str) -> TimelineSpan:
    (span,) = lane(timeline, name)
    return span


def test_states_follow_each_other_until_the_last_which_takes_no_time() -> None:
    found = lane(Log().begin().leased().state(TaskState.COMPLETED).timeline(), "state")
    assert [(span.title, span.at - START, span.until and span.until - START, span.outcome) for span in found] == [
        ("submitted", 1000, 2000, "info"),
        ("working", 2000, 3000, "info"),
        ("completed", 3000, 3000, "ok"),
    ]


def test_a_task_that_goes_on_has_an_open_state_and_an_open_attempt() -> None:
    log = Log().begin().leased()
    found = timeline_of(stored(2, worker="one", due_at=START + 60_000), log.events)
    assert [span.title for span in found.spans if span.until is None] == ["attempt 1 by one", "working"]
    assert only(found, "attempt").detail["leaseUntil"] == START + 60_000
    assert [(one.attempt, one.until, one.end) for one in found.attempts] == [(1, None, "")]


def test_progress_is_counted_in_the_state_that_it_is_about() -> None:
    log = Log().begin().leased()
    for step in range(1000):
        log.state(TaskState.WORKING, f"step {step}")
    working = lane(log.timeline(), "state")[-1]
    assert (working.detail["updates"], working.detail["message"], working.last) == (1000, "step 999", 1002)


def test_a_failure_is_a_problem_and_says_why() -> None:
    found = Log().begin().leased().state(TaskState.FAILED, "no such order").timeline()
    failed = lane(found, "state")[-1]
    assert (failed.outcome, failed.problem, failed.detail["message"]) == ("failed", True, "no such order")
    assert (only(found, "attempt").outcome, only(found, "attempt").problem) == ("failed", True)


def test_a_lost_lease_ends_its_attempt_as_a_problem_and_the_next_one_begins() -> None:
    found = Log().begin().leased().leased(2, "two", "expired").state(TaskState.COMPLETED).timeline()
    first, second = lane(found, "attempt")
    assert (first.title, first.outcome, first.problem, first.until) == (
        "attempt 1 by one",
        "failed",
        True,
        START + 3000,
    )
    assert (second.title, second.outcome, second.problem) == ("attempt 2 by two", "ok", False)
    assert [(one.worker, one.cause, one.end) for one in found.attempts] == [
        ("one", "new", "lost"),
        ("two", "expired", "done"),
    ]
    assert [span.attempt for span in lane(found, "state")] == [0, 1, 2]


def test_a_lease_that_was_given_back_is_not_a_problem() -> None:
    found = Log().begin().leased().leased(2, "two", "given back").timeline()
    assert (found.attempts[0].end, lane(found, "attempt")[0].problem) == ("given back", False)


def test_ten_thousand_chunks_are_one_span_for_each_artifact_and_attempt() -> None:
    log = Log().begin().leased()
    for _ in range(10_000):
        log.chunk("word ")
    log.chunk("", last=True).leased(2, "two", "expired")
    log.chunk("again", append=False)
    began = time.perf_counter()
    found = log.timeline()
    assert time.perf_counter() - began < 5.0
    first, second = lane(found, "output")
    assert (first.detail["artifact"], first.detail["count"], first.detail["chars"]) == ("answer", 10_001, 50_000)
    assert (first.first, first.last, first.outcome) == (3, 10_003, "ok")
    assert (second.attempt, second.detail["chars"]) == (2, 5)
    assert len(found.spans) < 12
    assert len(encode(found)) < 10_000


def test_a_model_call_has_its_tokens_times_and_what_it_asks_for() -> None:
    log = Log().begin().leased()
    at, first, end = (to_iso(START + ms) for ms in (2500, 2700, 2900))
    wants = records.FunctionCall(id="c1", name="refund", arguments={"amount": 500})
    log.note(
        records.ModelCalled(
            at=at, model="m", prompt=12, completion=3, calls=(wants,), first_token_at=first, ended_at=end
        )
    )
    span = only(log.timeline(), "model")
    assert (span.at, span.until, span.detail["firstTokenAt"]) == (START + 2500, START + 2900, START + 2700)
    assert (span.detail["prompt"], span.detail["completion"]) == (12, 3)
    assert span.detail["calls"] == [{"id": "c1", "name": "refund", "arguments": {"amount": 500}}]
    assert (span.title, span.outcome) == ("m asks for refund", "ok")


def test_an_answer_that_was_cut_off_is_a_problem() -> None:
    log = Log().begin().leased().note(records.ModelCalled(at="", model="m", text="and so", incomplete="length"))
    span = only(log.timeline(), "model")
    assert (span.outcome, span.problem, span.detail["incomplete"]) == ("failed", True, "length")


def test_a_call_is_one_span_that_names_what_led_to_it() -> None:
    log = Log().begin().leased()
    wants = records.FunctionCall(id="c1", name="refund", arguments={"amount": 500})
    log.note(records.ModelCalled(at=log.now, model="m", calls=(wants,)))
    log.note(records.Decided(at=log.now, step="before[0]", action="assert", outcome="passed", call="c1"))
    log.note(records.CapabilityBegan(at=log.now, **CALL))
    log.note(records.DelegationBegan(at=log.now, call="c1", task_id="child"))
    log.note(records.CapabilityFinished(at=log.now, output="done", task_id="child", ended_at=log.now, **CALL))
    log.note(records.CapabilityShown(at=log.now, call="c1", function="refund", content="done!"))
    found = log.timeline()
    model, decided, call = only(found, "model"), only(found, "policy"), only(found, "tool")
    assert (call.title, call.outcome, call.first, call.last) == ('refund({"amount":500})', "ok", 5, 8)
    assert (call.at, call.until) == (START + 5000, START + 7000)
    assert (call.detail["output"], call.detail["shown"], call.detail["child"]) == ("done", "done!", "child")
    assert call.causes == [model.id, decided.id]
    assert decided.causes == [model.id]
    assert found.children == ["child"]


@pytest.mark.parametrize(
    ("record", "outcome", "detail"),
    [
        (records.CapabilityErrored(at="", error="no such order", **CALL), "failed", {"error": "no such order"}),
        (records.CapabilityRestricted(at="", reason="too much", **CALL), "refused", {"reason": "too much"}),
    ],
)
def test_a_call_that_failed_or_was_refused_is_a_problem(record: Any, outcome: str, detail: dict[str, str]) -> None:
    span = only(Log().begin().leased().note(record).timeline(), "tool")
    assert (span.outcome, span.problem) == (outcome, True)
    assert span.detail.items() >= detail.items()


def test_a_call_that_a_crash_has_cut_off_is_unknown_and_its_repetition_says_so() -> None:
    log = Log().begin().leased().note(records.CapabilityBegan(at="", **CALL))
    log.leased(2, "two", "expired").note(
        records.CapabilityBegan(at="", **CALL), records.CapabilityFinished(at="", **CALL)
    )
    first, second = lane(log.timeline(), "tool")
    assert (first.problem, first.detail["unknown"], first.attempt) == (True, True, 1)
    assert (second.outcome, second.detail["repeats"], second.attempt) == ("ok", first.id, 2)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("passed", ("ok", False)),
        ("failed: block", ("refused", True)),
        ("failed: continue", ("info", False)),
        ("error: lock_task", ("failed", True)),
        ("exceeded", ("refused", True)),
    ],
)
def test_a_decision_shows_what_it_means(outcome: str, expected: tuple[str, bool]) -> None:
    decided = records.Decided(at="", step="guardrails.before[0]", action="assert", outcome=outcome, policy="v1")
    span = only(Log().begin().note(decided).timeline(), "policy")
    assert (span.outcome, span.problem) == expected
    assert (span.title, span.detail["policy"]) == (f"guardrails.before[0] {outcome}", "v1")


@pytest.mark.parametrize(("value", "outcome", "title"), [(True, "ok", "approved"), (False, "refused", "denied")])
def test_a_review_lasts_from_the_question_to_the_answer(value: bool, outcome: str, title: str) -> None:
    call = Call("review", ("bob@example.com",), place="before[1]")
    log = Log().begin().leased()
    log.note(records.Waiting(at=log.now, call=call, session=Session(now=log.now), key="k", subject={"amount": 1}))
    waiting = only(log.timeline(), "people")
    assert (waiting.until, waiting.outcome, waiting.title) == (None, "waiting", "review by bob@example.com")
    log.note(records.Answered(at=log.now, call=call, key="k", value=value, by="bob@example.com"))
    span = only(log.timeline(), "people")
    assert (span.until, span.outcome, span.title) == (START + 4000, outcome, f"review by bob@example.com: {title}")
    assert span.detail["subject"] == {"amount": 1}
    assert span.detail["place"] == "before[1]"


def test_a_message_names_its_sender_whichever_event_comes_first() -> None:
    options = RequestOptions(message_id="m1", caller="alice", address="198.51.100.1")
    after = Log().begin().add("request", encode(options))
    before = Log().add("request", encode(options)).begin()
    for log in (after, before):
        found = log.timeline()
        assert only(found, "message").detail.items() >= {"caller": "alice", "address": "198.51.100.1"}.items()
        assert found.hidden == {"request": 1}


def test_a_request_to_cancel_names_who_asked() -> None:
    log = Log().begin().add("cancel", encode(CancelRequest(caller="alice", address="198.51.100.1")))
    assert only(log.timeline(), "people").detail == {"by": "alice", "address": "198.51.100.1"}


def test_what_has_no_span_is_counted() -> None:
    log = Log().begin().note(records.Started(at="", agent="a"), records.InputArrived(at="", values={"message": "x"}))
    assert log.timeline().hidden == {"started": 1, "input": 1}


def test_an_event_that_cannot_be_read_is_shown_as_such_and_hides_nothing_else() -> None:
    found = Log().begin().add("record", b"{damaged").add("status", b"\xff").state(TaskState.COMPLETED).timeline()
    broken = [span for span in found.spans if span.title == "an event that cannot be read"]
    assert [(span.detail["kind"], span.problem) for span in broken] == [("record", True), ("status", True)]
    assert lane(found, "state")[-1].title == "completed"


def test_without_contents_the_timeline_says_when_what_happened_and_nothing_that_was_said() -> None:
    log = Log().begin("SECRET").leased(worker="SECRET")
    wants = records.FunctionCall(id="c1", name="refund", arguments={"amount": "SECRET"})
    log.note(records.ModelCalled(at=log.now, model="m", text="SECRET", prompt=5, calls=(wants,)))
    call: dict[str, Any] = {"call": "c1", "function": "refund", "arguments": {"amount": "SECRET"}}
    log.note(records.Decided(at=log.now, step="before[0]", action="assert", outcome="passed", detail="SECRET"))
    log.note(records.CapabilityBegan(at=log.now, **call), records.CapabilityErrored(at=log.now, error="SECRET", **call))
    log.note(
        records.CapabilityRestricted(at="", reason="SECRET", **call),
        records.InputRefused(at="", message_id="m", reason="SECRET"),
    )
    log.note(records.CapabilityShown(at="", call="c1", function="refund", content="SECRET"))
    review = Call("review", ("bob",))
    log.note(records.Waiting(at="", call=review, session=Session(now=""), subject="SECRET"))
    log.note(records.Answered(at="", call=review, value=False, error="SECRET", by="bob"))
    log.note(records.OutputHeld(at="", values={"message": "SECRET"}, turn={"x": "SECRET"}))
    log.note(records.Ended(at="", reason="errored", detail="SECRET"))
    log.add("request", encode(RequestOptions(message_id="m1", caller="SECRET", address="SECRET")))
    log.add("cancel", encode(CancelRequest(caller="SECRET", address="SECRET")))
    log.chunk("SECRET").state(TaskState.FAILED, "SECRET")
    shown, hidden = log.timeline(), log.timeline(contents=False)
    assert "SECRET" in encode(shown).decode()
    bare = [span for span in hidden.spans if "SECRET" in encode(span).decode()]
    # What the owner has said is in the task that it may read anyway, as is what was said to it.
    assert [span.title for span in bare] == ["user: SECRET"]
    assert [span.id for span in hidden.spans] == [span.id for span in shown.spans]
    assert hidden.left_out == {"contents": 1}


def test_the_name_of_a_task_that_another_agent_has_chosen_is_cut() -> None:
    log = Log()
    log.note(records.DelegationBegan(at=log.now, call="unknown", task_id="x" * 100_000))
    assert [len(child) for child in log.timeline().children] == [160]


def test_long_values_are_cut() -> None:
    log = Log().begin("x" * 100_000)
    log.note(records.CapabilityFinished(at="", call="c" * 10_000, function="f" * 10_000, output={"a": "y" * 100_000}))
    log.note(records.ModelCalled(at="", model="m" * 10_000, text="z" * 100_000))
    found = log.timeline()
    assert len(encode(found)) < 10 * SHOWN
    assert only(found, "tool").detail["output"].endswith("…")


def test_a_very_long_run_folds_into_at_most_so_many_spans_and_keeps_the_problems() -> None:
    log = Log().begin().leased()
    for number in range(5000):
        call: dict[str, Any] = {"call": f"c{number}", "function": "look", "arguments": {}}
        log.note(records.ModelCalled(at=log.now, model="m"), records.CapabilityBegan(at=log.now, **call))
        if number % 500 == 0:
            log.note(records.CapabilityErrored(at=log.now, error="gone", **call))
        else:
            log.note(records.CapabilityFinished(at=log.now, **call))
    found = log.timeline()
    assert len(found.spans) <= MAX_SPANS
    folded = {span.id: span.detail["count"] for span in found.spans if span.id.startswith("more-")}
    assert folded.keys() == {"more-model", "more-tool"}
    assert sum(folded.values()) + len(found.spans) - 2 == 1 + 2 + 1 + 10_000
    assert found.spans[0].first == 1
    assert len([span for span in lane(found, "tool") if span.problem and not span.id.startswith("more-")]) == 10


def test_the_details_of_very_many_large_spans_are_cut_further() -> None:
    log = Log().begin().leased()
    for number in range(MAX_SPANS):
        wants = [records.FunctionCall(id=f"{number}-{n}", name="f", arguments={"a": "x" * 900}) for n in range(20)]
        log.note(records.ModelCalled(at="", model="m", text="y" * 1000, calls=tuple(wants)))
    found = log.timeline()
    assert len(encode(found)) < 2 * 2**20
    assert found.left_out == {"details": len(found.spans)}
    calls = lane(found, "model")[-1].detail["calls"]
    assert (len(calls), calls[0].keys()) == (5, {"id", "name"})


def test_a_part_of_a_log_has_a_timeline_too() -> None:
    log = Log().begin().leased().note(records.CapabilityBegan(at="", **CALL), records.CapabilityFinished(at="", **CALL))
    found = timeline_of(stored(4), log.events[3:], gap=True)
    assert (found.gap, found.start, [span.title for span in found.spans]) == (
        True,
        START + 4000,
        ['refund({"amount":500})'],
    )


# Any log


KINDS: Sequence[EventKind] = ("task", "message", "request", "status", "artifact", "cancel", "record")
TIMES = st.sampled_from(["", to_iso(START), to_iso(START + 9_999), "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "x"])
IDS = st.sampled_from(["a", "b", "c", "\u202e", "x" * 300])
TEXTS = st.one_of(IDS, st.just("word " * 300))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS),
    lambda j: st.lists(j, max_size=3) | st.dictionaries(IDS, j, max_size=3),
    max_leaves=5,
)
CALLS = st.builds(Call, st.sampled_from(["review", "f"]), st.tuples(JSON), st.integers(0, 2), IDS)
ARGUMENTS = st.dictionaries(IDS, JSON, max_size=2)
MADE = {"at": TIMES, "call": IDS, "function": TEXTS, "arguments": ARGUMENTS}
WANTED = st.builds(records.FunctionCall, id=IDS, name=TEXTS, arguments=st.none() | ARGUMENTS)
RECORDS = st.one_of(
    st.builds(records.Started, at=TIMES, agent=IDS),
    st.builds(
        records.ModelCalled,
        at=TIMES,
        model=TEXTS,
        prompt=st.integers(),
        calls=st.lists(WANTED, max_size=30).map(tuple),
        text=TEXTS,
        incomplete=st.none() | IDS,
        first_token_at=TIMES,
        ended_at=TIMES,
    ),
    st.builds(records.CapabilityBegan, **MADE),
    st.builds(records.CapabilityFinished, output=JSON, task_id=st.none() | IDS, ended_at=TIMES, **MADE),
    st.builds(records.CapabilityErrored, error=TEXTS, executed=st.booleans(), ended_at=TIMES, **MADE),
    st.builds(records.CapabilityRestricted, reason=TEXTS, **MADE),
    st.builds(records.CapabilityShown, at=TIMES, call=IDS, function=IDS, content=JSON),
    st.builds(records.DelegationBegan, at=TIMES, call=IDS, task_id=IDS),
    st.builds(records.Decided, at=TIMES, step=TEXTS, action=IDS, outcome=TEXTS, call=st.none() | IDS, detail=TEXTS),
    st.builds(records.Waiting, at=TIMES, call=CALLS, session=st.builds(Session, now=TIMES), key=IDS, subject=JSON),
    st.builds(records.Answered, at=TIMES, call=CALLS, value=JSON, error=st.none() | TEXTS, key=IDS, by=TEXTS),
    st.builds(records.Ended, at=TIMES, reason=st.just("errored"), detail=TEXTS),
)
MESSAGES = st.builds(
    Message,
    message_id=IDS,
    role=st.sampled_from(Role),
    parts=st.lists(st.builds(Part, text=TEXTS), min_size=1, max_size=2),
)
STATUSES = st.builds(core.TaskStatus, state=st.sampled_from(TaskState), message=st.none() | MESSAGES)
UPDATES = st.one_of(
    st.builds(
        StreamResponse, status_update=st.builds(core.TaskStatusUpdateEvent, st.just("t"), st.just("c"), STATUSES)
    ),
    st.builds(StreamResponse, message=MESSAGES),
    st.builds(
        StreamResponse,
        task=st.builds(core.Task, id=st.just("t"), status=STATUSES, history=st.none() | st.lists(MESSAGES, max_size=5)),
    ),
    st.builds(
        StreamResponse,
        artifact_update=st.builds(
            core.TaskArtifactUpdateEvent,
            st.just("t"),
            st.just("c"),
            st.builds(Artifact, artifact_id=IDS, parts=st.just([Part(text="x")])),
            append=st.booleans(),
            last_chunk=st.booleans(),
        ),
    ),
)
DATA = st.one_of(
    RECORDS.map(records.encode),
    UPDATES.map(encode),
    st.builds(RequestOptions, message_id=IDS, caller=IDS).map(encode),
    st.binary(max_size=20),
    st.just(b"[" * 3000),
)
LEASES = st.none() | st.builds(
    LeaseRecord, st.integers(0, 9), TEXTS, st.integers(0, 2**53), st.sampled_from(["new", "expired", "given back"])
)


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    events, version, at = [], 0, START
    for data, lease in draw(st.lists(st.tuples(DATA, LEASES), max_size=60)):
        # Events may be missing, and a clock may go back.
        version += draw(st.integers(1, 3))
        at += draw(st.integers(-1000, 100_000))
        fitting: EventKind = "record" if b'"record"' in data else draw(st.sampled_from(KINDS))
        events.append(Event(version, fitting, data, at, lease))
    return events


@settings(max_examples=150, deadline=None)
@given(logs(), st.integers(1, 40), st.booleans())
def test_the_timeline_of_any_log_is_ordered_bounded_and_can_be_written(
    events: list[Event], times: int, contents: bool
) -> None:
    last = events[-1].version if events else 0
    repeated: Iterable[Event] = (
        msgspec.structs.replace(event, version=event.version + round_ * last)
        for round_, event in itertools.product(range(times), events)
    )
    fold = TimelineFold(contents=contents)
    fold.take(repeated)
    found = fold.timeline(stored(times * last))
    assert len(found.spans) <= MAX_SPANS
    assert [span.first for span in found.spans] == sorted(span.first for span in found.spans)
    ids = [span.id for span in found.spans]
    assert len(set(ids)) == len(ids)
    for span in found.spans:
        assert span.first <= span.last <= max(times * last, 1)
        assert span.until is None or span.until >= span.at
        assert set(span.causes) <= set(ids)
        assert len(span.title) <= 200
        assert len(encode(span)) < 40_000
    assert len(found.attempts) <= 100
    assert len(found.children) <= 100
    msgspec.json.decode(encode(found))
