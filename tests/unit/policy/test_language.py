"""The expression language: what goes in, what comes out, and what every error says."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from errands.errors import ConfigurationError
from errands.policy import cel
from errands.policy.cel import (
    CelError,
    Program,
    Session,
    Variables,
    run,
    scopes,
)
from errands.policy.cel.program import engine
from errands.policy.cel.values import normalise
from errands.policy.context_object import Context
from errands.policy.records import Started
from tests.unit.policy.support import NOW, value_of


def error_of(source: str, **values: Any) -> CelError:
    with pytest.raises(CelError) as caught:
        value_of(source, **values)
    return caught.value


def test_an_expression_is_compiled_once() -> None:
    assert cel.compile(scopes.BEFORE, "1 + 1 == 2") is cel.compile(scopes.BEFORE, "1 + 1 == 2")
    assert cel.compile(scopes.BEFORE, "1 + 1 == 2") is not cel.compile(scopes.AFTER, "1 + 1 == 2")


def test_put_gives_a_copy_with_the_key_set() -> None:
    assert value_of("[input.put('b', [2]), input]", input={"a": 1}) == [{"a": 1, "b": [2]}, {"a": 1}]
    assert value_of("input.put('a', {'b': null}).a", input={"a": 1}) == {"b": None}


def test_put_is_for_maps_and_strings() -> None:
    assert "put() is for a map" in error_of("input.put('b', 1)", input=[1]).problem
    assert "put() is for a map" in error_of("input.put(1, 1)", input={}).problem


def test_last_is_the_latest_of_a_list() -> None:
    assert value_of("context.capabilities.zendesk_fetch_ticket.outputs.last().title") == "Broken"
    assert "size() first" in error_of("[].last()").problem
    assert "last() is for a list" in error_of("'abc'.last()").problem


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("has(event)", False),
        ("!has(event) || event.payload.ok", True),
        ("has( event ) // has(event)", False),
        ("'has(event)' + \"has(event)\" + r'has(event)' == 'x' || has(event)", False),
        ("'''it's has(event)''' == 'x' || has(event)", False),
    ],
)
def test_there_is_never_an_event(source: str, value: bool) -> None:
    assert value_of(source) is value


def test_has_event_in_a_string_stays_text() -> None:
    assert value_of("'a \\' has(event)'") == "a ' has(event)"


def test_has_event_where_there_are_no_events_is_refused() -> None:
    with pytest.raises(CelError, match="'event' is not available in a guardrail before step"):
        cel.compile(scopes.GUARDRAIL_BEFORE, "!has(event)")


def test_places_in_errors_are_those_of_the_source_as_it_was_written() -> None:
    error = error_of("has(event) && has(event) &&\n  has(event) && nonsense")
    assert (error.line, error.column) == (2, 17)


@pytest.mark.parametrize("source", ["1", "'yes'", "null", "input", "input.count", "[true]"])
def test_a_condition_is_strictly_true_or_false(source: str) -> None:
    def decide() -> Any:
        program = cel.compile(scopes.BEFORE, source, condition=True)
        return run(program, Variables({}, input={"count": 1}), Session(NOW))

    with pytest.raises(CelError, match="a condition must be true or false"):
        decide()


@pytest.mark.parametrize(
    ("source", "problem", "hint"),
    [
        ("input.nothing", "Key not found", "has(...)"),
        ("context.input[7]", "Index error", "size(...)"),
        ("input.a + 1.5", "No matching overload", "double()"),
        ("1 / input.zero", "divide by zero", ""),
        ("event.payload", "No value with name", "no value here"),
        ("context.user.id + ", "Syntax error", ""),
        ("'abc", "Syntax error", ""),
        ("'a' + 1", "no matching overload", ""),
        ("", "Syntax error", ""),
        ("1.0 / 0.0", "not a JSON number", "another form"),
        ("'\ud800'", "not valid Unicode", "surrogates"),
    ],
)
def test_every_failure_is_one_kind_of_error_with_the_source(source: str, problem: str, hint: str) -> None:
    error = error_of(source, input={"a": 1, "zero": 0})
    assert problem in error.problem
    assert hint in error.hint
    assert error.source == source
    assert f"in `{source}`" in str(error)


def test_a_long_source_is_not_repeated_in_full() -> None:
    assert len(str(error_of("nonsense || " + "true || " * 500 + "true"))) < 600


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("timestamp(now)", NOW),
        ("timestamp('2026-01-01T00:00:00.250Z')", "2026-01-01T00:00:00.250000Z"),
        ("duration('90m')", "5400s"),
        ("duration('-1.5s')", "-1.5s"),
        ("b'abc'", "YWJj"),
        ("5u", 5),
        ("{'b': [duration('1s')], 'a': null}", {"a": None, "b": ["1s"]}),
        ("{1: 'x'}", {"1": "x"}),
        ("{true: 'x'}", {"true": "x"}),
        ("type(1)", "INT"),
        ("'héllo'", "héllo"),
        ("size('héllo')", 5),
        ("dyn(50) == 50.0", True),
        ("input.nothing == 1 || true", True),
    ],
)
def test_results_are_plain_json(source: str, value: Any) -> None:
    result = value_of(source)
    assert result == value
    assert msgspec.json.decode(msgspec.json.encode(result)) == value


def test_the_keys_of_a_result_have_an_order_that_can_be_repeated() -> None:
    assert list(value_of("{'b': 1, 'c': 2, 'a': 3}")) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ((1, 2), [1, 2]),
        ({"a": (1,)}, {"a": [1]}),
        ({1: 2}, {"1": 2}),
        (2**70, 2.0**70),
        ("a\ud800", "a?"),
        ({"a\0": "admin\0x"}, {"a\ufffd": "admin\ufffdx"}),
        (datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "2026-01-01T00:00:00Z"),
        (b"abc", "YWJj"),
        (Session(NOW), {"now": NOW}),
    ],
)
def test_values_are_made_plain_on_their_way_in(value: Any, seen: Any) -> None:
    assert value_of("input", input=value) == seen


def test_a_nul_does_not_end_a_text_early() -> None:
    assert value_of("input.user == 'admin'", input={"user": "admin\0x"}) is False
    assert value_of("{}.put('user', 'admin\\x00x').user == 'admin'") is False
    assert value_of("['admin\\x00x'].last() == 'admin'") is False
    context = Context(Started(at=NOW, agent="a", user="admin\0x")).plain()
    assert value_of("context.user.id == 'admin'", context=context) is False


def test_a_value_that_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="not a JSON value"):
        Variables(input=object())


def test_what_is_nested_too_deep_cannot_be_looked_into() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(CelError, match="input has more than 200,000 values or 64 levels at once"):
        value_of("size(input)", input=deep)
    assert value_of("context.user.id != ''", input=deep) is True


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_any_json_goes_through_an_expression_unchanged(value: Any) -> None:
    plain = normalise(value)
    assert value_of("[input]", input=value) == [plain]
    assert msgspec.json.encode(value_of("input", input=value), order="sorted") == msgspec.json.encode(
        plain, order="sorted"
    )


@given(st.text(alphabet="abcx'\"\\(){}[].,+ \nrbhaseventc/0", max_size=40))
def test_any_text_is_an_expression_or_a_cel_error(source: str) -> None:
    with contextlib.suppress(CelError):
        assert isinstance(cel.compile(scopes.BEFORE, source), Program)


@given(JSON, st.sampled_from(["context", "c.a", "c.cap", "c.cap.f", "has(c.a.b)", "context['a']", "c.cap.f == c.a"]))
def test_an_expression_sees_the_same_whether_all_of_the_context_is_there_or_what_it_names(
    value: Any, source: str
) -> None:
    """`c == c &&` makes it need the whole."""
    context = {"a": normalise(value), "capabilities": {"f": normalise(value), "g": 1}, "other": [1]}

    def outcome(text: str) -> Any:
        try:
            return value_of(text, context=context)
        except CelError as error:
            return error.problem

    if source == "context":
        assert outcome("context") == context
    else:
        assert outcome(source) == outcome(f"[{source}, c][0]")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    engine.cache_clear()
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigurationError, match=r"errands\[policy\]"):
        engine()
    engine.cache_clear()


def test_everything_can_be_imported_without_the_extra_and_only_expressions_need_it() -> None:
    script = (
        "import sys; sys.modules['cel_expr_python'] = None\n"
        "from errands.policy import context_object, limits, records, steps, template\n"
        "context_object.Context(records.Started(at='', agent='a')).plain()\n"
        "try: steps.compile_steps(steps.Phase.BEFORE, [steps.StepConfig(assert_='true')])\n"
        "except steps.ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "errands[policy]" in done.stdout
