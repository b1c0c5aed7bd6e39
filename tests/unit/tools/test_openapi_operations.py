"""`openapi`: what a document says about an operation becomes a function and a request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from errands.agents.tools.base import BrokenToolError
from tests.unit.tools.openapi import ID, called, declared, discovering, functions, of_query, operation, serving
from tests.unit.tools.support import Json, Service, calling, manifests, tool, toolbox

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("parameter", "value", "query"),
    [
        ({}, ["a", "b c"], "q=a&q=b%20c"),
        ({"explode": False}, ["a", "b"], "q=a%2Cb"),
        ({"style": "pipeDelimited", "explode": False}, ["a", "b"], "q=a%7Cb"),
        ({"style": "deepObject", "explode": True}, {"a": 1, "b": "x"}, "q%5Ba%5D=1&q%5Bb%5D=x"),
        ({}, {"a": 1, "b": True}, "a=1&b=true"),
        ({"explode": False}, {"a": 1}, "q=a%2C1"),
        ({"content": {"application/json": {"schema": {}}}}, {"a": [1]}, "q=%7B%22a%22%3A%5B1%5D%7D"),
        ({}, "a&b=c#d", "q=a%26b%3Dc%23d"),
        ({}, None, ""),
    ],
)
async def test_values_are_written_as_the_document_says(
    tmp_path: Path, service: Service, parameter: Json, value: Any, query: str
) -> None:
    document = operation(parameters=[ID, of_query(schema={}) | parameter])
    target = await called(tmp_path, service, document, {"id": "1", "q": value})
    assert target == "/things/1" + (f"?{query}" if query else "")


async def test_references_are_written_out(tmp_path: Path, service: Service) -> None:
    document = operation(
        parameters=[{"$ref": "#/components/parameters/Id~1slash"}],
        requestBody={"$ref": "#/components/requestBodies/Thing"},
    )
    document["components"] = {
        "parameters": {"Id/slash": ID},
        "requestBodies": {"Thing": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}}},
        "schemas": {
            "A": {"allOf": [{"$ref": "#/components/schemas/B"}, {"properties": {"more": {"type": "integer"}}}]},
            "B": {"type": "object", "properties": {"b": {"$ref": "#/components/schemas/C"}}},
            "C": {"type": "string", "description": "See.", "pattern": "(a+)+$"},
        },
    }
    assert await declared(tmp_path, service, document) == {
        "id": {"type": "string"},
        "b": {"type": ["string", "null"], "description": "See.", "default": None},
        "more": {"type": ["integer", "null"], "default": None},
    }


async def test_a_schema_inside_of_itself_ends(tmp_path: Path, service: Service) -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Node"}}, "required": ["next"]}
    document = operation(
        parameters=[ID],
        requestBody={
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Node"}}},
        },
    )
    document["components"] = {"schemas": {"Node": schema}}
    found = await declared(tmp_path, service, document)
    assert found["next"] == {}


async def test_references_that_multiply_are_cut(tmp_path: Path, service: Service) -> None:
    def doubling(level: int) -> Json:
        inner = {"$ref": f"#/components/schemas/L{level + 1}"}
        return {"type": "object", "properties": {"a": inner, "b": inner}}

    document = operation(
        parameters=[ID], requestBody={"content": {"application/json": {"schema": {"$ref": "#/components/schemas/L0"}}}}
    )
    document["components"] = {"schemas": {f"L{level}": doubling(level) for level in range(60)}}
    found = await declared(tmp_path, service, document)
    assert len(json.dumps(found)) < 200_000


@pytest.mark.parametrize("reference", ["#/components/schemas/None", "other.json#/A", "#/x/~", "#", 5])
async def test_references_that_lead_nowhere_allow_anything(tmp_path: Path, service: Service, reference: Any) -> None:
    document = operation(parameters=[ID, of_query(required=True, schema={"$ref": reference})])
    assert (await declared(tmp_path, service, document))["q"] == {}


async def test_the_schemas_of_version_3_0_are_understood(tmp_path: Path, service: Service) -> None:
    properties = {
        "n": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 5, "exclusiveMaximum": False},
        "s": {"type": "string", "nullable": True, "enum": ["a"]},
        "made": {"type": "string", "readOnly": True},
        "odd": {"type": "nonsense"},
        "bad": {"type": "integer", "default": "many"},
    }
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    document = operation(
        parameters=[ID], requestBody={"required": True, "content": {"application/json": {"schema": schema}}}
    )
    assert await declared(tmp_path, service, document) == {
        "id": {"type": "string"},
        "n": {"type": "number", "maximum": 5, "exclusiveMinimum": 0},
        "s": {"type": ["string", "null"], "enum": ["a", None]},
        "odd": {},
        "bad": {"type": "integer"},
    }


async def test_parameters_of_one_name_get_names_of_their_own(tmp_path: Path, service: Service) -> None:
    document = operation(
        parameters=[{**ID, "in": "header"}, of_query(name="id", schema={}), ID, of_query(name="filter[a]", schema={})],
        requestBody={"content": {"application/json": {"schema": {"properties": {"id": {"type": "string"}}}}}},
    )
    arguments = {"id": "p", "id_query": "q", "id_header": "h", "id_body": "b", "filter_a_": "f"}
    assert list(await declared(tmp_path, service, document)) == ["id", "id_query", "filter_a_", "id_header", "id_body"]
    assert await called(tmp_path, service, document, arguments) == "/things/p?id=q&filter%5Ba%5D=f"
    assert service.seen[-1].json == {"id": "b"}
    assert service.seen[-1].header("id") == "h"


async def test_headers_that_belong_to_others_are_no_parameters(tmp_path: Path, service: Service) -> None:
    headers: list[Json] = [
        {"name": name, "in": "header", "schema": {}} for name in ("Accept", "Content-Type", "AUTHORIZATION")
    ]
    assert list(await declared(tmp_path, service, operation(parameters=[ID, *headers]))) == ["id"]


async def test_what_holds_for_a_path_holds_for_its_operations(tmp_path: Path, service: Service) -> None:
    document = operation(parameters=[of_query(schema={"type": "integer"})])
    document["paths"]["/things/{id}"]["parameters"] = [ID, of_query(schema={"type": "string"})]
    found = await declared(tmp_path, service, document)
    assert found == {"id": {"type": "string"}, "q": {"type": ["integer", "null"], "default": None}}


@pytest.mark.parametrize(
    ("servers", "target"),
    [
        (None, "/things/1"),
        ([{"url": "/v2/"}], "/v2/things/1"),
        ([{"url": "v3"}], "/docs/v3/things/1"),
        ([{"url": "/{stage}", "variables": {"stage": {"default": "beta"}}}], "/beta/things/1"),
    ],
)
async def test_the_server_is_seen_from_the_document(
    tmp_path: Path, service: Service, servers: Any, target: str
) -> None:
    document = operation(parameters=[ID])
    if servers:
        document["servers"] = servers
    serving(service, document)
    described = tool("pets", openapi={"url": f"{service.url}/docs/openapi.json"})
    async with calling(toolbox(manifests(tmp_path, described))) as caller:
        await caller.call("pets_make", {"id": "1"})
    assert service.seen[-1].target == target
    assert service.seen[-1].header("idempotency-key") == "call-1"


async def test_a_server_elsewhere_stands_behind_the_guard(tmp_path: Path, service: Service) -> None:
    document = operation(parameters=[ID], servers=[{"url": "http://169.254.169.254/latest"}])
    with pytest.raises(BrokenToolError, match=r"169\.254\.169\.254 is link-local"):
        await called(tmp_path, service, document, {"id": "1"})


async def test_operations_without_an_id_are_called_by_method_and_path(tmp_path: Path, service: Service) -> None:
    one = {"parameters": [ID]}
    serving(service, {"openapi": "3.1.0", "paths": {"/": {"get": {}}, "/a-b/{id}/c": {"get": one, "delete": one}}})
    found = await functions(toolbox(discovering(tmp_path, service.url)))
    assert list(found) == ["pets_get", "pets_get_a_b_id_c", "pets_delete_a_b_id_c"]


async def test_names_that_models_cannot_write_are_changed_and_stay_apart(tmp_path: Path, service: Service) -> None:
    ids = ["a.b", "a b", "x" * 80, "x" * 81]
    serving(
        service, {"openapi": "3.1.0", "paths": {f"/{n}": {"get": {"operationId": name}} for n, name in enumerate(ids)}}
    )
    found = await functions(toolbox(discovering(tmp_path, service.url)))
    assert [function.operation for function in found.values()] == ids
    assert all(name.isidentifier() and len(name) <= 64 for name in found)
    assert list(found) == list(await functions(toolbox(discovering(tmp_path, service.url))))
