"""`openapi` against a real service that describes itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Body, Cookie, Depends, FastAPI, File, Form, Header, HTTPException, Query, UploadFile
from fastapi.security import APIKeyHeader, APIKeyQuery, HTTPBasic, HTTPBasicCredentials, HTTPBearer
from pydantic import BaseModel

from errands.agents.manifests.functions import Arguments, ArgumentsError
from errands.agents.tools.base import BrokenToolError, ToolError
from tests.live import live
from tests.unit.tools.openapi import SECURITY, discovering, functions
from tests.unit.tools.support import Json, action, calling, manifests, tool, toolbox

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
    assert "the operation add_photo is left out because its body is multipart/form-data" in caplog.text


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
        resolved = await Arguments(function).resolve(arguments, {})
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
        await Arguments(found[f"pets_{name}"]).resolve(arguments, {})


async def test_an_error_of_the_service_is_an_error_for_the_model(tmp_path: Path, pets: str) -> None:
    async with calling(toolbox(discovering(tmp_path, pets))) as caller:
        with pytest.raises(ToolError, match=r"answered 404 Not Found: .*there is no such pet"):
            await caller.call("pets_get_pet", {"pet_id": "none", "verbose": False})


@pytest.mark.parametrize("value", ["", ".", "..", "../admin"])
async def test_a_value_leads_to_no_other_path(tmp_path: Path, pets: str, value: str) -> None:
    async with calling(toolbox(discovering(tmp_path, pets))) as caller:
        with pytest.raises(ToolError, match=r"is empty|cannot be used in the address"):
            await caller.call("pets_get_pet", {"pet_id": value})


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


async def test_include_names_operations(tmp_path: Path, pets: str, caplog: pytest.LogCaptureFixture) -> None:
    found = await functions(toolbox(discovering(tmp_path, pets, {"include": ["get-pet", "list_pets", "gone"]})))
    assert [name for name, function in found.items() if function.offered] == ["pets_get_pet", "pets_list_pets"]
    assert "pets: include names 'gone', which does not exist" in caplog.text


async def test_bindings_hide_parameters_of_what_was_discovered(tmp_path: Path, pets: str) -> None:
    bindings = {"pet_id": "context.user.id"}
    found = await functions(toolbox(discovering(tmp_path, pets, {"bindings": bindings})))
    assert found["pets_get_pet"].bindings == {"pet_id": "context.user.id"}
    assert list(found["pets_get_pet"].parameters["properties"]) == ["verbose"]
    assert found["pets_list_pets"].bindings == {}


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
        arguments = await Arguments(function).resolve({"pet_id": "7"}, {})
        assert await caller.call("pets_find", arguments) == {"id": "7", "verbose": True}


async def test_an_operation_that_is_not_there_breaks_the_tool(tmp_path: Path, pets: str) -> None:
    configured = {"url": f"{pets}/openapi.json", "operation": "get_pets"}
    box = toolbox(manifests(tmp_path, tool("pets", actions=[action("find", "openapi", configured)])))
    with pytest.raises(BrokenToolError, match="the operation get_pets does not exist; did you mean get-pet"):
        await box.functions()
