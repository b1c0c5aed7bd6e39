"""Tools in a whole agent: real services behind sockets, policy on what was discovered, sessions, errors, secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from fastapi import FastAPI

from errands.policy.records import Decided, Ended, encode
from tests.agents.rig import AGENT, Reply, at_work, call
from tests.live import live
from tests.unit.tools.support import Service, action, tool

pytestmark = pytest.mark.anyio

SETTINGS = {"properties": {"key": {"type": "string", "format": "password"}}}
TEXT = {"type": "string"}


@pytest.fixture(scope="module")
def pets() -> Iterator[str]:
    app = FastAPI(title="Pets")

    @app.get("/pets/{pet}", operation_id="get-pet")
    async def get_pet(pet: str) -> dict[str, str]:
        return {"pet": pet}

    @app.delete("/pets/{pet}", operation_id="delete-pet")
    async def delete_pet(pet: str) -> dict[str, str]:
        return {"gone": pet}

    with live(app) as url:
        yield url


def agent(*tools: Any, **fields: Any) -> str:
    fields.setdefault("capabilities", {one["name"]: "*" for one in tools})
    return "---\n".join([AGENT + yaml.safe_dump(fields), *(yaml.safe_dump(one) for one in tools)])


def crm(service: Service) -> Any:
    request = {
        "method": "POST",
        "url": f"{service.url}/orders/{{parameters.number}}",
        "headers": {"Authorization": "Bearer {settings.key}"},
    }
    return tool(settings=SETTINGS, actions=[action("find", "stateless_http", request, number=TEXT)])


async def test_an_http_tool_answers_the_model_and_its_key_is_in_no_record(tmp_path: Path, service: Service) -> None:
    service.answers({"number": "A/1", "echo": "Bearer hunter2-key"})
    replies: list[Reply] = [call(("crm", {"number": "A/1"})), "There it is."]
    settings = {"crm": {"key": "hunter2-key"}}
    async with at_work(tmp_path, agent(crm(service)), *replies, settings=settings) as desk:
        task = await desk.say("Where is A/1?")
        assert desk.model.results() == [{"number": "A/1", "echo": "Bearer [secret]"}]
        told = msgspec.json.encode([encode(record) for record in await desk.records()]).decode()
    assert service.only.target == "/orders/A%2F1"
    assert service.only.header("authorization") == "Bearer hunter2-key"
    assert (service.only.header("idempotency-key") or "").startswith(f"{task.id}:")
    assert "hunter2" not in told


async def test_an_error_of_the_service_goes_to_the_model_and_the_task_goes_on(tmp_path: Path, service: Service) -> None:
    service.answers({"detail": "no such order"}, 404)
    replies: list[Reply] = [call(("crm", {"number": "A-9"})), "I cannot find it."]
    async with at_work(tmp_path, agent(crm(service)), *replies, settings={"crm": {"key": "k"}}) as desk:
        task = await desk.say("Where is A-9?")
        [result] = desk.model.results()
    assert "answered 404 Not Found" in result["error"]
    assert task.status.state == "TASK_STATE_INPUT_REQUIRED"


async def test_an_address_that_is_closed_ends_the_task_and_only_the_log_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    request = {"method": "GET", "url": "http://169.254.169.254/latest"}
    document = tool(actions=[action("find", "stateless_http", request)])
    async with at_work(tmp_path, agent(document), call(("crm", {}))) as desk:
        task = await desk.say("Who are you?")
        ended = next(record for record in await desk.records() if isinstance(record, Ended))
    assert task.status.state == "TASK_STATE_FAILED"
    assert ended.detail.startswith("crm cannot be used (reference ")
    assert "169.254.169.254 is link-local" in caplog.text


async def test_a_session_ends_with_its_task(tmp_path: Path, service: Service) -> None:
    service.answers({"id": "S-1"})
    requests = {
        "create": {"method": "POST", "url": f"{service.url}/sessions"},
        "extract": {"id": "$.id"},
        "execute": {"method": "POST", "url": f"{service.url}/sessions/{{session.id}}/click"},
        "destroy": {"method": "DELETE", "url": f"{service.url}/sessions/{{session.id}}"},
    }
    web = tool("web", actions=[action("click", "stateful_session", requests)])
    replies: list[Reply] = [call(("web", {}), ("web", {})), "Clicked."]
    async with at_work(tmp_path, agent(web, limits={"max_turns": 2}), *replies) as desk:
        await desk.say("Click twice.")
        assert [seen.target for seen in service.seen] == ["/sessions", *["/sessions/S-1/click"] * 2]
        task = await desk.say("And again.")
    assert task.status.state == "TASK_STATE_FAILED"
    assert [(seen.method, seen.target) for seen in service.seen[3:]] == [("DELETE", "/sessions/S-1")]


# What was discovered


def of_pets(url: str, **capability: Any) -> str:
    return agent(tool("pets", openapi={"url": f"{url}/openapi.json"}), capabilities={"pets": capability or "*"})


async def test_the_operations_of_a_document_are_functions(tmp_path: Path, pets: str) -> None:
    replies: list[Reply] = [call(("pets_get_pet", {"pet": "Rex"}), ("pets_delete_pet", {"pet": "Tom"})), "Done."]
    async with at_work(tmp_path, of_pets(pets), *replies) as desk:
        await desk.say("Look after the pets.")
        assert [offer.name for offer in desk.model.questions[0].offers] == ["pets_get_pet", "pets_delete_pet"]
        assert desk.model.results() == [{"pet": "Rex"}, {"gone": "Tom"}]
        record = (await desk.context()).plain()["capabilities"]["pets_delete_pet"]
    assert record["count_successful"] == 1


async def test_a_step_can_match_what_was_discovered(tmp_path: Path, pets: str) -> None:
    before = [{"match": "delete-pet", "assert": "input.pet != 'Rex'", "error_message": "Not {input.pet}."}]
    replies: list[Reply] = [call(("pets_get_pet", {"pet": "Rex"}), ("pets_delete_pet", {"pet": "Rex"})), "Done."]
    async with at_work(tmp_path, of_pets(pets, before=before), *replies) as desk:
        await desk.say("Look after the pets.")
        assert desk.model.results() == [{"pet": "Rex"}, {"error": "Not Rex."}]


async def test_a_step_can_match_the_action_that_stands_for_all(tmp_path: Path, pets: str) -> None:
    document = tool("pets", actions=[action("all", "openapi", {"url": f"{pets}/openapi.json"})])
    before = [{"match": "all", "assert": "false", "error_message": "Not today."}]
    text = agent(document, capabilities={"pets": {"before": before}})
    async with at_work(tmp_path, text, call(("pets_get_pet", {"pet": "Rex"})), "Done.") as desk:
        await desk.say("Look after the pets.")
        assert desk.model.results() == [{"error": "Not today."}]


async def test_a_step_can_invoke_what_was_discovered(tmp_path: Path, pets: str) -> None:
    before = [{"match": "delete-pet", "invoke": "pets:get-pet", "bindings": {"pet": "input.pet"}}]
    replies: list[Reply] = [call(("pets_delete_pet", {"pet": "Tom"})), "Done."]
    async with at_work(tmp_path, of_pets(pets, before=before), *replies) as desk:
        await desk.say("Look after the pets.")
        assert desk.model.results() == [{"gone": "Tom"}]
        assert (await desk.context()).plain()["capabilities"]["pets_get_pet"]["outputs"] == [{"pet": "Tom"}]


async def test_a_step_that_invokes_what_nobody_offers_stops_the_call(tmp_path: Path, pets: str) -> None:
    before = [{"invoke": "pets:feed-pet", "bindings": {"pet": "input.pet"}}]
    replies: list[Reply] = [call(("pets_delete_pet", {"pet": "Tom"})), "Done."]
    async with at_work(tmp_path, of_pets(pets, before=before), *replies) as desk:
        await desk.say("Look after the pets.")
        [result] = desk.model.results()
        decided = next(record for record in await desk.records() if isinstance(record, Decided))
    assert "error" in result
    assert "pets offers no feed-pet" in str(decided.detail)


async def test_a_binding_of_what_was_discovered_wins(tmp_path: Path, pets: str) -> None:
    text = of_pets(pets, bindings={"pet": "'Rex'"})
    async with at_work(tmp_path, text, call(("pets_get_pet", {"pet": "Tom"})), "Done.") as desk:
        await desk.say("Look after the pets.")
        assert desk.model.questions[0].offers[0].parameters["properties"] == {}
        assert desk.model.results() == [{"pet": "Rex"}]
