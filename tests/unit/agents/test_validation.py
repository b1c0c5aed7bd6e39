"""Values against schemas: the work is bounded, whatever the schema and the values are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from errands.agents.manifests import patterns, schemas
from errands.agents.manifests.patterns import JsonPathError, QueryStoppedError, compile_path, find
from errands.agents.manifests.schemas import Parameters, ValidationStoppedError
from errands.policy.cel.evaluators import Evaluators, use_evaluators
from tests.unheld import unheld

pytestmark = pytest.mark.anyio

SLOW = r"^([a-zA-Z0-9]+[._-]?)+@example\.com$"


@pytest.fixture
async def evaluators(anyio_backend: str) -> Any:
    """Those of a server, as patient as a slow machine needs."""
    made = Evaluators(timeout=60)
    use_evaluators(made)
    yield made
    await made.close()


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def alternatives(depth: int) -> dict[str, Any]:
    """A schema that tries `2 ** depth` ways, and none fits."""
    if depth == 0:
        return {"const": "no"}
    return {"anyOf": [alternatives(depth - 1), {"not": {}, "allOf": [alternatives(depth - 1)]}]}


HOSTILE: dict[str, tuple[dict[str, Any], Any]] = {
    "a pattern": ({"pattern": SLOW}, "a" * 100_000),
    "a pattern for names": ({"patternProperties": {SLOW: False}}, {"a" * 10_000: 1}),
    "patterns for what is additional": (
        {"patternProperties": {SLOW: {}}, "additionalProperties": False},
        {"a" * 40: 1},
    ),
    "patterns for what is not evaluated": (
        {"allOf": [{"patternProperties": {SLOW: {}}}], "unevaluatedProperties": False},
        {"a" * 40: 1},
    ),
    "property names": ({"propertyNames": {"pattern": SLOW}}, {"a" * 40 + str(number): 1 for number in range(1_000)}),
    "unique objects": ({"uniqueItems": True}, [{"id": number} for number in range(50_000)]),
    "unique lists": ({"uniqueItems": True}, [[number] for number in range(50_000)]),
    "contains": ({"contains": {"const": -1}, "minContains": 5}, [{"id": number} for number in range(50_000)]),
    "a long enum of objects": ({"items": {"enum": [{"id": n} for n in range(200)]}}, [{"id": 199}] * 2_000),
    "alternatives": ({"items": alternatives(9)}, [1] * 500),
    "what is not evaluated": (
        {"allOf": [{"properties": {"a": {}}}] * 20, "unevaluatedProperties": False},
        {f"k{number}": 1 for number in range(50_000)},
    ),
    "a large number": ({"multipleOf": 0.1}, 10**4000),
    "many levels": ({"type": "string"}, nested(900)),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_hostile_values_do_not_hold_the_event_loop(case: str, evaluators: Evaluators) -> None:
    schema, value = HOSTILE[case]
    with unheld():
        await Parameters({"x": schema}).problems({"x": value})


async def test_what_may_take_long_is_checked_elsewhere_with_the_same_result(evaluators: Evaluators) -> None:
    parameters = Parameters({"x": {"items": {"anyOf": [{"const": n} for n in range(20)]}}, "y": {"type": "null"}})
    assert await parameters.problems({"x": [19] * 100_000, "y": None}) == []
    [[name, problem]] = await parameters.problems({"x": [19] * 100_000 + [20, 10**30], "y": None})
    assert (name, problem.path, problem.keyword) == ("x", [100_000], "anyOf")


async def test_what_takes_too_long_is_refused_and_others_are_served_meanwhile(evaluators: Evaluators) -> None:
    evaluators.timeout = 0.5
    # Every comparison of fractions takes microseconds.
    parameters = Parameters({"x": {"items": {"enum": [number / 8 for number in range(4_000)]}}})
    checking = asyncio.create_task(parameters.problems({"x": [3_999 / 8] * 100_000}))
    while not checking.done():
        with unheld():
            await asyncio.sleep(0)
    with pytest.raises(ValidationStoppedError, match=r"the values cannot be checked: it took longer than 0\.5 s"):
        await checking


def test_what_has_no_json_form_is_a_problem() -> None:
    problem = schemas.problem({"type": "integer"}, "\ud800")
    assert problem is not None
    assert problem.message.startswith("cannot be checked")


def test_no_schema_is_fetched() -> None:
    assert not schemas.is_usable({"$ref": "http://127.0.0.1:9/schema"})


# JSONPath


async def test_a_json_path_matches_in_linear_time() -> None:
    value = [{"code": "a" * 40, "pattern": SLOW}]
    with unheld():
        assert await find(f"$[?search(@.code, '{SLOW}')]".replace("\\", "\\\\"), value) == []
        assert await find("$[?match(@.code, @.pattern)]", value) == []
        assert await find("$[?match(@.code, 'a+')]", value) == value


@pytest.mark.parametrize("path", ["$[?search(@.a, '(?=a)')]", "$..b[?@.c && (1 == 1 || match(@.a, '(a+'))]"])
def test_a_pattern_that_cannot_be_matched_is_no_json_path(path: str) -> None:
    with pytest.raises(JsonPathError, match=r"invalid perl operator|missing"):
        compile_path(path)


async def test_a_query_that_may_take_long_is_made_elsewhere(evaluators: Evaluators) -> None:
    rows = [{"id": number} for number in range(300)]
    with unheld():
        assert await find("$[?count($[?@.id >= 0]) == 300].id", rows) == list(range(300))
    evaluators.timeout = 0.1
    rows = [{"id": number} for number in range(100_000)]
    with unheld(), pytest.raises(QueryStoppedError, match="it took longer"):
        await find("$..[?search(@.id, '9') || @..id]", rows)


async def test_a_value_that_is_nested_too_deeply_is_told() -> None:
    with pytest.raises(QueryStoppedError, match="nested too deeply"):
        patterns.find_here("$..a", nested(500))
