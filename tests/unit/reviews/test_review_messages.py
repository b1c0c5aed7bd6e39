"""What a reviewer is asked, and what counts as an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from errands.errors import InvalidParamsError
from errands.model.base import encode
from errands.model.core import Message, Part, Role, text_of
from errands.model.marks import REVIEW, is_review
from errands.policy.cel.session import Call
from errands.policy.reviews import (
    SUBJECT_BYTES,
    Verdict,
    asked_in,
    read_verdict,
    review_message,
    reviewer,
    reviewer_of,
    verdict_message,
)

ASK_BOB = Call("review", ("bob",))


def said(*parts: Part) -> Message:
    return Message(message_id="m", role=Role.USER, parts=list(parts), task_id="t")


def asked(subject: Any, call: Call = ASK_BOB) -> Message:
    return review_message(call, subject, task_id="t", context_id="c")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("approve", Verdict(True)),
        ("Approved", Verdict(True)),
        ("  YES\n", Verdict(True)),
        ("yes, but hurry", Verdict(True, "but hurry")),
        ("approved: looks good\nto me", Verdict(True, "looks good\nto me")),
        ("approve!", Verdict(True)),
        ("deny", Verdict(False)),
        ("Denied - too expensive", Verdict(False, "too expensive")),
        ("no", Verdict(False)),
        ("No. Never.", Verdict(False, "Never.")),
    ],
)
def test_a_text_that_begins_with_the_answer_is_one(text: str, verdict: Verdict) -> None:
    assert read_verdict(said(Part(text=text))) == verdict


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([Part(data={"approved": True})], Verdict(True)),
        ([Part(data={"approved": False, "comment": " why? "})], Verdict(False, "why?")),
        ([Part(data={"approved": False, "comment": None})], Verdict(False)),
        ([Part(text="no"), Part(data={"approved": True})], Verdict(True, "no")),
        ([Part(data={"approved": True, "comment": "fine"}), Part(text="x")], Verdict(True, "fine")),
    ],
)
def test_a_data_part_is_taken_before_text(parts: list[Part], verdict: Verdict) -> None:
    assert read_verdict(said(*parts)) == verdict


@pytest.mark.parametrize(
    "parts",
    [
        [Part(text="hello")],
        [Part(text="")],
        [Part(text="not yet")],
        [Part(text="approve?")],
        [Part(text="yesterday")],
        [Part(text="nobody")],
        [Part(text="I approve")],
        [Part(text="approval")],
        [Part(data={})],
        [Part(data={"approved": "yes"})],
        [Part(data={"approved": 1})],
        [Part(data={"approved": None})],
        [Part(data={"approved": True, "coment": "x"})],
        [Part(data={"approved": True, "comment": 5})],
        [Part(data=True)],
        [Part(data=None)],
        [Part(data=[{"approved": True}])],
        [Part(data={"approved": True}), Part(data={"approved": False})],
        [Part(data={"approved": True}), Part(data={"approved": True})],
        [Part(data={"x": 1}), Part(text="approve")],
        [Part(raw=b"approve")],
        [Part(url="https://example.com/approve")],
    ],
)
def test_anything_else_is_refused_with_how_to_answer(parts: list[Part]) -> None:
    with pytest.raises(
        InvalidParamsError, match=r'Task t .*begins with "approve" or "deny".*"approved": true'
    ) as raised:
        read_verdict(said(*parts))
    assert raised.value.field == "message.parts"


def test_the_question_names_the_reviewer_and_the_subject_in_words_and_as_data() -> None:
    message = asked({"amount": 500})
    assert (message.role, message.task_id, message.context_id) == (Role.AGENT, "t", "c")
    text, data = message.parts
    assert text.text is not None
    assert text.text.startswith('Waiting for a review by bob: {"amount":500}\n')
    assert "approve or deny" in text.text
    assert data.data == {"review": {"user": "bob", "subject": {"amount": 500}}}
    assert is_review(message)


def test_the_question_about_a_call_names_its_function() -> None:
    text, data = review_message(ASK_BOB, {"amount": 500}, task_id="t", context_id="c", function="pay").parts
    assert (text.text or "").startswith('Waiting for a review by bob: pay {"amount":500}\n')
    assert data.data == {"review": {"user": "bob", "function": "pay", "subject": {"amount": 500}}}


@pytest.mark.parametrize(
    ("metadata", "user"),
    [(None, None), ({}, None), ({REVIEW: {"user": "bob"}}, "bob"), ({REVIEW: {"user": 5}}, None), ({REVIEW: 5}, None)],
)
def test_who_is_asked_is_read_from_any_message_without_trust_in_its_form(
    metadata: dict[str, Any] | None, user: str | None
) -> None:
    assert asked_in(Message(message_id="m", role=Role.AGENT, parts=[], metadata=metadata)) == user


@pytest.mark.parametrize("subject", [None, "plain words", 5, [], {}, {"deep": [{"x": None}]}])
def test_a_subject_may_be_any_json(subject: Any) -> None:
    assert asked(subject).parts[1].data == {"review": {"user": "bob", "subject": subject}}


@pytest.mark.parametrize("letter", ["x", "ü", "😀", '"'])
def test_a_large_subject_is_cut_off_and_says_so(letter: str) -> None:
    message = asked({"text": letter * 100_000})
    review = message.parts[1].data["review"]  # type: ignore[index]
    assert review["truncated"] is True
    assert review["subject"].startswith('{"text":')
    assert review["subject"].endswith("…")
    assert len(review["subject"].encode()) <= SUBJECT_BYTES + 3
    assert len(encode(message)) < 3 * SUBJECT_BYTES
    json.loads(encode(message))


def test_reviewers_are_compared_without_the_case_of_e_mail_addresses() -> None:
    assert reviewer(" Bob@Example.COM ") == "bob@example.com"
    assert reviewer("Bob") == "Bob"
    assert reviewer_of(Call("review", ("Bob@Example.com",))) == "bob@example.com"
    assert asked(1, Call("review", ("Bob@Example.com",))).parts[1].data == {
        "review": {"user": "bob@example.com", "subject": 1}
    }


@pytest.mark.parametrize("arguments", [(), ("",), ("  ",), (None,), (5,), (["bob"],)])
def test_a_review_by_nobody_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="name the user"):
        reviewer_of(Call("review", arguments))


def test_an_answer_is_kept_in_words_with_who_gave_it() -> None:
    message = verdict_message(Verdict(False, "too much"), "bob", task_id="t", context_id="c", message_id="m")
    assert (message.message_id, message.role, text_of(message.parts)) == ("m", Role.USER, "denied: too much")
    assert message.metadata == {REVIEW: {"user": "bob", "approved": False}}
    assert is_review(message)
    assert str(Verdict(True)) == "approved"
