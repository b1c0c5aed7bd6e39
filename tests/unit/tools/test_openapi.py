"""`openapi` against a real service that describes itself, and against documents of all sorts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from fastapi import Body, Cookie, Depends, FastAPI, File, Form, Header, HTTPException, Query, UploadFile
from fastapi.security import APIKeyHeader, APIKeyQuery, HTTPBasic, HTTPBasicCredentials, HTTPBearer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from errands.agents.manifests import Function
from errands.agents.manifests.arguments import Arguments, ArgumentsError
from errands.agents.tools.base import Bounds, BrokenToolError, ToolError
from errands.agents.tools.openapi.document import Document
from errands.agents.tools.openapi.operations import Catalogue
from errands.agents.tools.toolbox import Toolbox
from tests.unit.tools.support import Json, Service, action, calling, live, manifests, tool, toolbox

pytestmark = pytest.mark.anyio


class Toy(BaseModel):
    name: str
    weight: float | None = None
    parts: list[Toy] = []


class Pet(BaseModel):
    name: str
    id: int
    toy: Toy | None = None
    tags: list[str] = ["new"]


def shop() -> FastAPI:
    """A service with one of everything."""
    app = FastAPI(title="Pets", docs_url=None)

    @app.get("/pets/{pet_id}", operation_id="get-pet", summary="Finds a pet.")
    async def get_pet(pet_id: str, verbose: bool = False) -> Json:
        if pet_id == "none":
            raise HTTPException(404, "there is no such pet")
        return {"id": pet_id, "verbose": verbose}

    @app.get("/pets", operation_id="list_pets")
    async def list_pets(
        tag: Annotated[list[str] | None, Query()] = None,
        limit: Annotated[int, Query(le=50, description="How many.")] = 10,
        x_shop: Annotated[str | None, Header()] = None,
        visit: Annotated[str | None, Cookie()] = None,
    ) -> Json:
        return {"tag": tag, "limit": limit, "shop": x_shop, "visit": visit}

    @app.put("/pets/{id}", operation_id="replace_pet")
    async def replace_pet(id: str, pet: Pet, notify: bool) -> Json:  # noqa: A002 - as in many services
        return {"path": id, "pet": pet.model_dump(), "notify": notify}

    @app.post("/words")
    async def count_words(words: Annotated[list[str], Body()]) -> int:
        return len(words)

    @app.post("/login", operation_id="login")
    async def login(user: Annotated[str, Form()], code: Annotated[int, Form()]) -> Json:
        return {"user": user, "code": code}

    @app.post("/photo", operation_id="add_photo")
    async def add_photo(photo: Annotated[UploadFile, File()]) -> None: ...

    @app.get("/by-key", operation_id="by_key")
    async def by_key(key: Annotated[str, Depends(APIKeyHeader(name="X-Key", scheme_name="shopKey"))]) -> str:
        return f"key {key[:2]}"

    @app.get("/by-query", operation_id="by_query")
    async def by_query(key: Annotated[str, Depends(APIKeyQuery(name="key", scheme_name="queryKey"))]) -> str:
        return f"query {key[:2]}"

    @app.get("/by-token", operation_id="by_token")
    async def by_token(token: Annotated[Any, Depends(HTTPBearer(scheme_name="token"))]) -> str:
        return f"token {token.credentials[:2]}"

    @app.get("/by-password", operation_id="by_password")
    async def by_password(who: Annotated[HTTPBasicCredentials, Depends(HTTPBasic(scheme_name="login"))]) -> str:
        return f"user {who.username}, password of {len(who.password)}"

    return app


@pytest.fixture(scope="module")
def pets() -> Iterator[str]:
    with live(shop()) as url:
        yield url


def discovering(folder: Path, url: str, capability: Json | None = None, **fields: Any) -> Any:
    document = tool("pets", openapi={"url": f"{url}/openapi.json"}, **fields)
    return manifests(folder, document, capabilities={"pets": capability or "*"})


async def functions(box: Toolbox) -> dict[str, Function]:
    return {function.name: function for function in await box.functions()}


# A real service


async def test_every_operation_becomes_a_function(tmp_path: Path, pets: str) -> None:
    found = await functions(toolbox(discovering(tmp_path, pets)))
    assert list(found) == [
        "pets_get_pet",
        "pets_list_pets",
        "pets_replace_pet",
        "pets_count_words_words_post",
        "pets_login",
        "pets_by_key",
        "pets_by_query",
        "pets_by_token",
        "pets_by_password",
    ]
    assert found["pets_get_pet"].description == "Finds a pet."
    assert found["pets_get_pet"].operation == "get-pet"
    assert found["pets_get_pet"].parameters == {
        "type": "object",
        "properties": {
            "pet_id": {"type": "string", "title": "Pet Id"},
            "verbose": {"type": "boolean", "default": False, "title": "Verbose"},
        },
        "required": ["pet_id"],
        "additionalProperties": False,
    }


async def test_what_cannot_be_sent_is_left_out_and_that_is_logged(
    tmp_path: Path, pets: str, caplog: pytest.LogCaptureFixture
) -> None:
    await functions(toolbox(discovering(tmp_path, pets)))
    assert "the operation add_photo is left out, because its body is multipart/form-data" in caplog.text


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("get_pet", {"pet_id": "a b?c#d", "verbose": True}, {"id": "a b?c#d", "verbose": True}),
        ("list_pets", {}, {"tag": None, "limit": 10, "shop": None, "visit": None}),
        (
            "list_pets",
            {"tag": ["a&b", "c"], "limit": 3, "x-shop": "north", "visit": "v1"},
            {"tag": ["a&b", "c"], "limit": 3, "shop": "north", "visit": "v1"},
        ),
        (
            "replace_pet",
            {"id": "7", "notify": True, "name": "Rex", "id_body": 7, "toy": {"name": "ball", "parts": [{"name": "x"}]}},
            {
                "path": "7",
                "notify": True,
                "pet": {
                    "name": "Rex",
                    "id": 7,
                    "tags": ["new"],
                    "toy": {"name": "ball", "weight": None, "parts": [{"name": "x", "weight": None, "parts": []}]},
                },
            },
        ),
        ("count_words_words_post", {"body": ["a", "b"]}, 2),
        ("login", {"user": "ann&code=2", "code": 1}, {"user": "ann&code=2", "code": 1}),
    ],
)
async def test_a_call_reaches_the_service_as_it_was_meant(
    tmp_path: Path, pets: str, name: str, arguments: Json, result: Any
) -> None:
    async with calling(toolbox(discovering(tmp_path, pets))) as caller:
        function = caller.functions[f"pets_{name}"]
        resolved = Arguments(function).resolve(arguments, {})
        assert await caller.call(function.name, resolved) == result


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("get_pet", {}), ("list_pets", {"limit": 51}), ("list_pets", {"tag": "a"}), ("replace_pet", {"id": "1"})],
)
async def test_arguments_are_checked_against_the_document(
    tmp_path: Path, pets: str, name: str, arguments: Json
) -> None:
    found = await functions(toolbox(discovering(tmp_path, pets)))
    with pytest.raises(ArgumentsError):
        Arguments(found[f"pets_{name}"]).resolve(arguments, {})


async def test_an_error_of_the_service_is_an_error_for_the_model(tmp_path: Path, pets: str) -> None:
    async with calling(toolbox(discovering(tmp_path, pets))) as caller:
        with pytest.raises(ToolError, match=r"answered 404 Not Found: .*there is no such pet"):
            await caller.call("pets_get_pet", {"pet_id": "none", "verbose": False})


@pytest.mark.parametrize("value", ["", ".", "..", "../admin"])
async def test_a_value_leads_to_no_other_path(tmp_path: Path, pets: str, value: str) -> None:
    async with calling(toolbox(discovering(tmp_path, pets))) as caller:
        with pytest.raises(ToolError, match=r"is empty|cannot be used in the address"):
            await caller.call("pets_get_pet", {"pet_id": value})


SECURITY = {
    "properties": {
        name: {"type": "string", "format": "password", "default": ""}
        for name in ("shopKey", "queryKey", "token", "login", "authorization")
    }
}


@pytest.mark.parametrize(
    ("name", "setting", "value", "result"),
    [
        ("by_key", "shopKey", "k1-secret", "key k1"),
        ("by_query", "queryKey", "q1-secret", "query q1"),
        ("by_token", "token", "t1-secret", "token t1"),
        ("by_token", "authorization", "Bearer a1-secret", "token a1"),
        ("by_password", "login", "ann:pass", "user ann, password of 4"),
    ],
)
async def test_credentials_are_settings_with_the_names_of_the_documents_schemes(
    tmp_path: Path, pets: str, name: str, setting: str, value: str, result: str
) -> None:
    found = discovering(tmp_path, pets, settings=SECURITY)
    async with calling(toolbox(found, settings={"pets": {setting: value}})) as caller:
        assert await caller.call(f"pets_{name}") == result


async def test_without_credentials_the_service_says_so(tmp_path: Path, pets: str) -> None:
    async with calling(toolbox(discovering(tmp_path, pets, settings=SECURITY))) as caller:
        with pytest.raises(ToolError, match=r"answered 40[13]"):
            await caller.call("pets_by_token")


# Functions


async def test_include_names_operations(tmp_path: Path, pets: str, caplog: pytest.LogCaptureFixture) -> None:
    found = await functions(toolbox(discovering(tmp_path, pets, {"include": ["get-pet", "list_pets", "gone"]})))
    assert [name for name, function in found.items() if function.offered] == ["pets_get_pet", "pets_list_pets"]
    assert "pets: include names 'gone', and there is no such thing" in caplog.text


async def test_bindings_hide_parameters_of_what_was_discovered(
    tmp_path: Path, pets: str, caplog: pytest.LogCaptureFixture
) -> None:
    bindings = {"pet_id": "context.user.id", "nothing": "1"}
    found = await functions(toolbox(discovering(tmp_path, pets, {"bindings": bindings})))
    assert found["pets_get_pet"].bindings == {"pet_id": "context.user.id"}
    assert list(found["pets_get_pet"].parameters["properties"]) == ["verbose"]
    assert found["pets_list_pets"].bindings == {}
    assert "pets: the binding 'nothing' fits no parameter" in caplog.text


async def test_an_action_can_be_one_operation(tmp_path: Path, pets: str) -> None:
    url = f"{pets}/openapi.json"
    actions = [
        action("find", "openapi", {"operation": "get-pet"}, verbose={"type": "boolean", "default": True}),
        action("all", "openapi", {"operation": "list_pets"}),
    ]
    box = toolbox(manifests(tmp_path, tool("pets", openapi={"url": url}, actions=actions)))
    async with calling(box) as caller:
        function = caller.functions["pets_find"]
        assert function.description == "Does find."
        assert function.declared == {
            "pet_id": {"type": "string", "title": "Pet Id"},
            "verbose": {"type": "boolean", "default": True},
        }
        arguments = Arguments(function).resolve({"pet_id": "7"}, {})
        assert await caller.call("pets_find", arguments) == {"id": "7", "verbose": True}


async def test_an_operation_that_is_not_there_breaks_the_tool(tmp_path: Path, pets: str) -> None:
    configured = {"url": f"{pets}/openapi.json", "operation": "get_pets"}
    box = toolbox(manifests(tmp_path, tool("pets", actions=[action("find", "openapi", configured)])))
    with pytest.raises(BrokenToolError, match="the operation get_pets is not there; did you mean get-pet"):
        await box.functions()


# Documents


def serving(service: Service, document: Any, *, kind: str = "application/json") -> None:
    service.sends((document if isinstance(document, str) else json.dumps(document)).encode(), kind)


def operation(**fields: Any) -> Json:
    return {"openapi": "3.0.3", "paths": {"/things/{id}": {"post": {"operationId": "make", **fields}}}}


async def declared(folder: Path, service: Service, document: Any) -> Json:
    serving(service, document)
    found = await functions(toolbox(discovering(folder, service.url)))
    return found["pets_make"].declared


async def called(folder: Path, service: Service, document: Any, arguments: Json, **options: Any) -> str:
    """What was asked for, when the function `make` is called."""
    serving(service, document)
    async with calling(toolbox(discovering(folder, service.url), **options)) as caller:
        await caller.call("pets_make", arguments)
    return service.seen[-1].target


ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}


def of_query(**fields: Any) -> Json:
    return {"name": "q", "in": "query", **fields}


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


async def test_a_document_may_be_yaml(tmp_path: Path, service: Service) -> None:
    document = operation(parameters=[ID, of_query(schema={"enum": ["no", "on"]})], responses={200: {}})
    serving(service, yaml.safe_dump(document), kind="application/yaml")
    found = await functions(toolbox(discovering(tmp_path, service.url)))
    assert found["pets_make"].declared["q"]["anyOf"][0] == {"enum": ["no", "on"]}


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


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is no JSON"),
        ("a: [", "line 2, is no YAML"),
        ("[1]", "is no OpenAPI 3 document; it has no field openapi"),
        ('{"swagger": "2.0"}', "is no OpenAPI 3 document; it has no field openapi"),
        ('{"openapi": "2.0"}', "it says openapi: 2.0"),
        ("", "is no OpenAPI 3 document"),
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
    "document",
    [
        {"openapi": "3.1.0"},
        {"openapi": "3.1.0", "paths": 5},
        {"openapi": "3.1.0", "paths": {"/": 5, "/a": {"get": 5}, "/b": {"get": {"parameters": 5, "requestBody": 5}}}},
        {"openapi": "3.1.0", "security": 5, "components": 5, "servers": 5, "paths": {"/": {"get": {"security": [5]}}}},
        {"openapi": "3.1.0", "servers": [5], "paths": {"/": {"get": {"parameters": [5, {"in": "query"}, {"in": 7}]}}}},
        {"openapi": "3.1.0", "paths": {"/": {"post": {"requestBody": {"content": {"application/json": 5}}}}}},
        {"openapi": "3.1.0", "paths": {"/": {"get": {"parameters": [{"in": "query", "name": "q", "content": 5}]}}}},
        {"openapi": "3.1.0", "components": {"securitySchemes": {"a": 5}}, "paths": {"/": {"get": {}}}},
    ],
)
async def test_a_document_that_is_half_wrong_is_used_as_far_as_possible(
    tmp_path: Path, service: Service, document: Json
) -> None:
    serving(service, document)
    await toolbox(discovering(tmp_path, service.url)).functions()


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


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(SCRAPS, SCRAPS, SCRAPS)
def test_no_document_makes_it_stumble(operation: Any, path: Any, components: Any) -> None:
    item = {**(path if isinstance(path, dict) else {}), "get": operation}
    root = {"openapi": "3.1.0", "paths": {"/x/{a}": item, "/y": path}, "components": components}
    catalogue = Catalogue(Document("https://example.com/openapi.json", root))
    for name in catalogue.names:
        with suppress(BrokenToolError):
            catalogue.operation(name)


async def test_too_many_operations_are_not_offered(tmp_path: Path, service: Service) -> None:
    serving(service, {"openapi": "3.1.0", "paths": {f"/{number}": {"get": {}} for number in range(301)}})
    with pytest.raises(BrokenToolError, match=r"has 301 operations, and at most 300 .* write actions that each name"):
        await toolbox(discovering(tmp_path, service.url)).functions()


async def test_a_document_that_is_too_large_is_not_read(tmp_path: Path, service: Service) -> None:
    serving(service, {"openapi": "3.1.0", "x": "x" * 2000})
    with pytest.raises(BrokenToolError, match=r"what pets offers cannot be found out: .* more than 1,000 bytes"):
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
