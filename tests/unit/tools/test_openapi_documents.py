"""`openapi`: documents of all sorts are read, used as far as possible, or refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from errands.agents.tools.base import Bounds, BrokenToolError
from errands.agents.tools.openapi import ApiDocument
from tests.soak import examples
from tests.unit.tools.openapi import ID, SECURITY, discovering, functions, of_query, operation, serving
from tests.unit.tools.support import Json, Service, calling, toolbox

pytestmark = pytest.mark.anyio


async def test_a_document_may_be_yaml(tmp_path: Path, service: Service) -> None:
    document = operation(parameters=[ID, of_query(schema={"enum": ["no", "on"]})], responses={200: {}})
    serving(service, yaml.safe_dump(document), kind="application/yaml")
    found = await functions(toolbox(discovering(tmp_path, service.url)))
    assert found["pets_make"].declared["q"]["anyOf"][0] == {"enum": ["no", "on"]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not valid JSON"),
        ("a: [", "line 2, is not valid YAML"),
        ("[1]", "is not an OpenAPI 3 document; it has no field openapi"),
        ('{"swagger": "2.0"}', "is not an OpenAPI 3 document; it has no field openapi"),
        ('{"openapi": "2.0"}', "it says openapi: 2.0"),
        ("", "is not an OpenAPI 3 document"),
        ("[" * 100_000, "nested too deeply|is no JSON"),
    ],
)
async def test_what_is_no_such_document_breaks_the_tool(
    tmp_path: Path, service: Service, content: str, problem: str
) -> None:
    serving(service, content)
    with pytest.raises(BrokenToolError, match=problem):
        await toolbox(discovering(tmp_path, service.url)).functions()


@pytest.mark.parametrize(
    ("rest", "offered"),
    [
        ({}, {}),
        ({"paths": 5}, {}),
        ({"paths": {"/": 5, "/a": {"get": 5}, "/b": {"get": {"parameters": 5, "requestBody": 5}}}}, {"get_b": []}),
        ({"security": 5, "components": 5, "servers": 5, "paths": {"/": {"get": {"security": [5]}}}}, {"get": []}),
        (
            {"servers": [5], "paths": {"/": {"get": {"parameters": [5, {"in": "query"}, {"in": 7}]}}}},
            {"get": []},
        ),
        ({"paths": {"/": {"post": {"requestBody": {"content": {"application/json": 5}}}}}}, {"post": ["body"]}),
        ({"paths": {"/": {"get": {"parameters": [{"in": "query", "name": "q", "content": 5}]}}}}, {"get": ["q"]}),
        ({"components": {"securitySchemes": {"a": 5}}, "paths": {"/": {"get": {}}}}, {"get": []}),
    ],
)
async def test_a_document_that_is_half_wrong_is_used_as_far_as_possible(
    tmp_path: Path, service: Service, rest: Json, offered: dict[str, list[str]]
) -> None:
    serving(service, {"openapi": "3.1.0", **rest})
    found = await functions(toolbox(discovering(tmp_path, service.url)))
    assert {function.operation: list(function.declared) for function in found.values()} == offered


SCRAPS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["query", "object", "#/paths", "#/components/a", "/x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                """
                $ref get post parameters in name schema content requestBody application/json type properties required
                items allOf anyOf servers url variables security components securitySchemes default enum nullable a /x
                """.split()  # noqa: SIM905 - it reads as a list of words
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])
@given(SCRAPS, SCRAPS, SCRAPS)
def test_each_operation_of_any_document_can_be_used_is_left_out_or_breaks_the_tool(
    operation: Any, path: Any, components: Any
) -> None:
    item = {**(path if isinstance(path, dict) else {}), "get": operation}
    root = {"openapi": "3.1.0", "paths": {"/x/{a}": item, "/y": path}, "components": components}
    catalogue = ApiDocument("https://example.com/openapi.json", root)
    for name in catalogue.names:
        try:
            found = catalogue.operation(name)
        except BrokenToolError:
            continue
        assert found is None or found.parameters.keys() == found.places.keys()


async def test_too_many_operations_are_not_offered(tmp_path: Path, service: Service) -> None:
    serving(service, {"openapi": "3.1.0", "paths": {f"/{number}": {"get": {}} for number in range(301)}})
    with pytest.raises(BrokenToolError, match=r"has 301 operations, and at most 300 .* write actions that each name"):
        await toolbox(discovering(tmp_path, service.url)).functions()


async def test_a_document_that_is_too_large_is_not_read(tmp_path: Path, service: Service) -> None:
    serving(service, {"openapi": "3.1.0", "x": "x" * 2000})
    with pytest.raises(BrokenToolError, match=r"the operations of pets cannot be listed: .* more than 1,000 bytes"):
        await toolbox(discovering(tmp_path, service.url), bounds=Bounds(max_bytes=1000)).functions()


async def test_a_discovery_that_failed_is_tried_again_and_one_that_worked_is_kept(
    tmp_path: Path, service: Service
) -> None:
    box = toolbox(discovering(tmp_path, service.url))
    service.answers({}, 503)
    with pytest.raises(BrokenToolError, match="answered 503"):
        await box.functions()
    serving(service, operation(parameters=[ID]))
    assert list(await functions(box)) == ["pets_make"]
    assert list(await functions(box)) == ["pets_make"]
    assert len(service.seen) == 2


async def test_nothing_secret_is_logged_about_discoveries(
    tmp_path: Path, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    serving(service, operation(parameters=[ID]))
    found = discovering(tmp_path, service.url, settings=SECURITY)
    async with calling(toolbox(found, settings={"pets": {"authorization": "Bearer a1-secret"}})) as caller:
        await caller.call("pets_make", {"id": "1"})
    assert service.seen[-1].header("authorization") == "Bearer a1-secret"
    assert "a1-secret" not in caplog.text


async def test_a_body_of_any_kind_is_sent_as_json(tmp_path: Path, service: Service) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    body = {"required": True, "content": {"*/*": {"schema": schema}}}
    serving(service, operation(parameters=[ID], requestBody=body))
    async with calling(toolbox(discovering(tmp_path, service.url))) as caller:
        await caller.call("pets_make", {"id": "1", "name": "Rex"})
    assert service.seen[-1].header("content-type") == "application/json"
    assert service.seen[-1].json == {"name": "Rex"}
