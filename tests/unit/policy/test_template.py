"""`{expression}` inside of text."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errands.policy.cel import CelError, Session, Variables, scopes
from errands.policy.template import compile_template
from tests.unit.policy.support import NOW, a_run

RUNTIME = {"version": "1", "api_root": "http://a"}


def rendered(source: str, scope: scopes.NameScope = scopes.PROMPT, **values: Any) -> Any:
    variables = Variables(a_run().plain(), **{"runtime": RUNTIME, **values})
    return asyncio.run(compile_template(scope, source).value(variables, Session(NOW)))


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("", ""),
        ("plain text", "plain text"),
        ("Help {context.user.id}.", "Help ann."),
        ("{context.input[0].ticket_id} at {now} by {runtime.version}", "T-1 at 2026-05-20T03:45:00Z by 1"),
        ("{c.cap._meta.count} calls, {size(c.input)} input", "3 calls, 1 input"),
        ("a {{literal}} brace", "a {literal} brace"),
        ('{{"json": "{context.user.id}"}}', '{"json": "ann"}'),
        ("{'a } in a string'}", "a } in a string"),
        ("{ {'a': 1}.a } x", "1 x"),
        ("{has(context.input[0].phone) ? context.input[0].phone : 'none'}", "none"),
    ],
)
def test_expressions_are_put_in_and_doubled_braces_are_text(source: str, value: str) -> None:
    assert rendered(source) == value


def test_values_that_are_no_text_become_json() -> None:
    assert rendered("{true} {null} {1.5} {[1, 'a']} {context.llm.tokens}") == (
        'true null 1.5 [1,"a"] {"completion":630,"prompt":5300,"total":5930}'
    )


@pytest.mark.parametrize(
    ("source", "value"),
    [("{context.llm.tokens.total}", 5930), ("{[1, 2]}", [1, 2]), ("{null}", None), ("{true}", True)],
)
def test_a_text_that_is_exactly_one_expression_keeps_the_type(source: str, value: Any) -> None:
    assert rendered(source) == value
    assert isinstance(rendered(f"{source} "), str)


def test_a_value_that_is_missing_is_an_error_and_never_an_empty_text() -> None:
    with pytest.raises(CelError, match="Key not found"):
        rendered("Bearer {settings.token}", scopes.REQUEST, settings={})
    with pytest.raises(CelError, match="No value with name"):
        rendered("Bearer {settings.token}", scopes.REQUEST)


@pytest.mark.parametrize("source", ["{auth.github()}", "{auth.github}", "{ auth . github ( ) }"])
def test_tokens_of_providers_are_written_with_or_without_parentheses(source: str) -> None:
    assert rendered(source, scopes.REQUEST, auth={"github": "secret"}) == "secret"


def test_settings_that_stand_in_one_another_are_found() -> None:
    settings = {"github": {"token": "t", "app": {"id": 7}}, "plain": 1}
    assert rendered("{settings.github.token}/{settings.github.app.id}", scopes.REQUEST, settings=settings) == "t/7"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a {context.user.id", r"`{` without `}` \(line 1, column 3\).*write {{ and }}"),
        ("a\nb } c", r"`}` without `{` \(line 2, column 3\)"),
        ("{}", "nothing between the braces"),
        ("{ }", "nothing between the braces"),
        ("{output}", "'output' is not available in a prompt"),
        ("{settings.key}", "'settings' is not available in a prompt"),
        ("{context.}", "Syntax error"),
        ("Answer as {answer: 1}", "Syntax error.*write {{ and }}"),
    ],
)
def test_a_wrong_template_is_refused_at_load(source: str, message: str) -> None:
    with pytest.raises(CelError, match=f"(?s){message}"):
        compile_template(scopes.PROMPT, source)


def test_a_template_makes_no_calls() -> None:
    with pytest.raises(CelError, match="'review' is not available"):
        compile_template(scopes.BEFORE, "{review('bob')}")


def test_a_template_is_compiled_once() -> None:
    assert compile_template(scopes.PROMPT, "{now}") is compile_template(scopes.PROMPT, "{now}")


def doubled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


@given(st.text())
def test_any_text_survives_when_its_braces_are_doubled(text: str) -> None:
    assert rendered(doubled(text)) == text


@given(st.text(), st.text(), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_a_value_stands_where_its_expression_stood(before: str, after: str, value: str) -> None:
    source = f"{doubled(before)}{{parameters.x}}{doubled(after)}"
    template = compile_template(scopes.REQUEST, source)
    text = asyncio.run(template.text(Variables({}, parameters={"x": value}), Session(NOW)))
    assert text == f"{before}{value}{after}"


@given(st.text(alphabet="{}ab'\" .", max_size=20))
def test_any_text_is_a_template_or_a_cel_error(text: str) -> None:
    with contextlib.suppress(CelError):
        assert compile_template(scopes.PROMPT, text).source == text
