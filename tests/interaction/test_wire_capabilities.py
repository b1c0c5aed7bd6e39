"""On the wire: versions, extensions, and what an agent offers or does not."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from errands import AgentCardConfig, CapabilitiesConfig, ExtensionConfig
from errands.model.card import HTTPAuthSecurityScheme, SecurityScheme
from errands.operations import OPERATIONS
from errands.testing import serve
from tests.interaction.agents import Asks, Echo, card
from tests.interaction.wire import CARD, call, http, message, rpc

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("version", ["1.0", "1.0.1", ""])
async def test_this_version_is_spoken(binding: str, version: str) -> None:
    async with http(serve(Echo())) as client:
        reason, _ = await call(client, "SendMessage", {"message": message()}, binding, **{"A2A-Version": version})
        assert reason is None


async def test_another_version_is_refused(binding: str) -> None:
    async with http(serve(Echo())) as client:
        reason, error = await call(client, "SendMessage", {"message": message()}, binding, **{"A2A-Version": "99.0"})
        assert reason == "VERSION_NOT_SUPPORTED"
        assert "1.0" in error["message"]
        assert (await client.get("/tasks?A2A-Version=99.0")).status_code == 400


async def test_a_required_extension_must_be_declared(binding: str) -> None:
    needed = ExtensionConfig(uri="urn:needed", required=True)
    liked = ExtensionConfig(uri="urn:liked")
    async with http(serve(Echo(), agent_card=card(extensions=[needed, liked]))) as client:
        reason, error = await call(client, "SendMessage", {"message": message()}, binding)
        assert reason == "EXTENSION_SUPPORT_REQUIRED"
        assert "urn:needed" in error["message"]
        headers = {"A2A-Extensions": "urn:liked, urn:needed,urn:unknown"}
        answer = await client.post("/message:send", json={"message": message()}, headers=headers)
        assert answer.status_code == 200
        assert answer.headers["a2a-extensions"] == "urn:liked, urn:needed"
        assert "x-a2a-extensions" not in answer.headers


async def test_extensions_are_declared_in_the_header_of_either_version_and_confirmed_in_the_same() -> None:
    needed, liked = ExtensionConfig(uri="urn:needed", required=True), ExtensionConfig(uri="urn:liked")
    params = {"message": message(role="user")}
    async with http(serve(Echo(), agent_card=card(extensions=[needed, liked]))) as client:
        answer = await client.post("/", json=rpc("message/send", params), headers={"X-A2A-Extensions": "urn:needed"})
        assert "result" in answer.json()
        assert answer.headers["x-a2a-extensions"] == "urn:needed"
        assert "a2a-extensions" not in answer.headers
        refused = await client.post("/", json=rpc("message/send", params), headers={"X-A2A-Extensions": "urn:liked"})
        assert "X-A2A-Extensions" in refused.json()["error"]["message"]
        both = [("A2A-Extensions", "urn:needed"), ("X-A2A-Extensions", "urn:needed"), ("X-A2A-Extensions", "urn:liked")]
        answer = await client.post("/", json=rpc("message/send", params), headers=both)
        for name in ("a2a-extensions", "x-a2a-extensions"):
            assert answer.headers.get_list(name) == ["urn:needed, urn:liked"]


async def test_an_agent_that_does_not_stream_says_so(binding: str) -> None:
    async with http(serve(Asks(), agent_card=card(capabilities=CapabilitiesConfig()))) as client:
        _, asked = await call(client, "SendMessage", {"message": message()}, binding)
        for operation, params in (
            ("SendStreamingMessage", {"message": message()}),
            ("SubscribeToTask", {"id": asked["task"]["id"]}),
        ):
            assert (await call(client, operation, params, binding))[0] == "UNSUPPORTED_OPERATION"


@pytest.mark.parametrize("operation", [name for name, row in OPERATIONS.items() if "Push" in name])
async def test_push_notifications_that_are_turned_off_are_not_supported(binding: str, operation: str) -> None:
    async with http(serve(Echo(), push_notifications=False)) as client:
        assert (await client.get(CARD)).json()["capabilities"]["pushNotifications"] is False
        params = {"taskId": "t", "id": "c", "url": "https://example.com"}
        assert (await call(client, operation, params, binding))[0] == "PUSH_NOTIFICATION_NOT_SUPPORTED"


async def test_a_send_that_wants_push_notifications_is_refused_and_creates_nothing(binding: str) -> None:
    body = {
        "message": message(),
        "configuration": {"taskPushNotificationConfig": {"url": "https://example.com"}},
    }
    off = card(capabilities=CapabilitiesConfig(push_notifications=False))
    async with http(serve(Echo(), agent_card=off)) as client:
        assert (await call(client, "SendMessage", body, binding))[0] == "PUSH_NOTIFICATION_NOT_SUPPORTED"
        assert (await client.get("/tasks")).json()["totalSize"] == 0


async def test_the_extended_card_is_unsupported_unconfigured_or_given(binding: str) -> None:
    async with http(serve(Echo())) as client:
        assert (await call(client, "GetExtendedAgentCard", {}, binding))[0] == "UNSUPPORTED_OPERATION"
    offered = card(capabilities=CapabilitiesConfig(extended_agent_card=True))
    async with http(serve(Echo(), agent_card=offered)) as client:
        assert (await call(client, "GetExtendedAgentCard", {}, binding))[0] == "EXTENDED_AGENT_CARD_NOT_CONFIGURED"

    async def provider(request: Request) -> AgentCardConfig:
        return AgentCardConfig(name="Extended", description="More.")

    async with http(serve(Echo(), agent_card=card(), extended_card_provider=provider)) as client:
        _, document = await call(client, "GetExtendedAgentCard", {}, binding)
        assert document["name"] == "Extended"
        assert (await client.get(CARD)).json()["capabilities"]["extendedAgentCard"] is True


async def test_the_extended_card_of_a_secured_agent_is_for_authenticated_clients(binding: str) -> None:
    async def provider(request: Request) -> AgentCardConfig:
        return AgentCardConfig(name="Extended", description="More.")

    scheme = SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer"))
    secured = card(security_schemes={"bearer": scheme})
    async with http(serve(Echo(), agent_card=secured, extended_card_provider=provider)) as client:
        assert (await call(client, "GetExtendedAgentCard", {}, binding))[0] == "UNAUTHENTICATED"


async def test_a_media_type_the_agent_does_not_take_is_refused(binding: str) -> None:
    parts = [{"raw": "aGk=", "mediaType": "image/png"}]
    async with http(serve(Echo(), agent_card=card(input_modes=["text/plain"]))) as client:
        reason, error = await call(client, "SendMessage", {"message": message(parts=parts)}, binding)
        assert reason == "CONTENT_TYPE_NOT_SUPPORTED"
        assert "text/plain" in error["message"]
        assert (await client.get("/tasks")).json()["totalSize"] == 0
    async with http(serve(Echo(), agent_card=card(input_modes=["image/*"]))) as client:
        assert (await call(client, "SendMessage", {"message": message(parts=parts)}, binding))[0] is None
