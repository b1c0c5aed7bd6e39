"""Every error the protocol knows reaches the client as the class it was raised as, over every dialect."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from starlette.requests import Request

from errands import (
    A2AMiddleware,
    AgentCardConfig,
    BearerTokenMiddleware,
    CapabilitiesConfig,
    ExtensionConfig,
    Part,
    RequestEnvelope,
    TaskContext,
    Worker,
)
from errands.errors import (
    A2AError,
    AuthenticationRequiredError,
    ContentTypeNotSupportedError,
    ExtendedAgentCardNotConfiguredError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    UnsupportedOperationError,
)
from errands.wire.status import ERRORS
from tests.cells import one_engine
from tests.interaction.agents import Asks, Echo, card
from tests.interaction.conftest import Connect, Dialect, one_dialect

pytestmark = pytest.mark.anyio

PATIENCE = {"max_retries": 0}


class Refuses(A2AMiddleware):
    def __init__(self, error: A2AError) -> None:
        self._error = error

    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        raise self._error


def error_of(kind: type[A2AError]) -> A2AError:
    error = kind("Said by the agent")
    if isinstance(error, InvalidParamsError):
        error.field = "message.parts[0]"
    error.metadata.setdefault("taskId", "t-1")
    return error


@pytest.mark.parametrize("reason", sorted(ERRORS))
@one_engine
async def test_an_error_arrives_as_what_it_was(connected: Connect, reason: str) -> None:
    error = error_of(ERRORS[reason])
    async with connected(Echo(), middlewares=[Refuses(error)], client=PATIENCE) as client:
        with pytest.raises(A2AError) as caught:
            await client.get_task("t-1")
        assert type(caught.value) is type(error)
        assert caught.value.message == "Said by the agent"
        assert caught.value.reason == reason
        if isinstance(caught.value, InvalidParamsError):
            assert caught.value.field == "message.parts[0]"


@pytest.mark.parametrize("reason", ["TASK_NOT_FOUND", "UNSUPPORTED_OPERATION", "INVALID_PARAMS", "PERMISSION_DENIED"])
@one_engine
async def test_a_stream_that_is_refused_raises_the_same(connected: Connect, reason: str) -> None:
    error = error_of(ERRORS[reason])
    async with connected(Echo(), middlewares=[Refuses(error)], client=PATIENCE) as client:
        with pytest.raises(type(error)):
            [event async for event in client.stream("hi")]
        with pytest.raises(type(error)):
            [event async for event in client.subscribe("t-1")]


@one_engine
async def test_a_part_of_a_type_the_agent_does_not_take_is_refused(connected: Connect) -> None:
    async with connected(Echo(), agent_card=card(input_modes=["text/plain"])) as client:
        with pytest.raises(ContentTypeNotSupportedError, match="application/pdf"):
            await client.send([Part(raw=b"%PDF", media_type="application/pdf")])


@one_dialect
async def test_a_context_id_is_as_long_as_every_store_can_hold_it_or_refused(connected: Connect) -> None:
    async with connected(Echo(), client=PATIENCE) as client:
        longest = secrets.token_urlsafe(750)
        assert (await client.send("hi", context_id=longest)).context_id == longest
        with pytest.raises(InvalidParamsError, match="1000 bytes"):
            await client.send("hi", context_id=f"{longest}x")


@one_engine
async def test_an_extended_card_that_nobody_provides_is_not_configured(connected: Connect) -> None:
    offered = CapabilitiesConfig(streaming=True, extended_agent_card=True)
    async with connected(Echo(), agent_card=card(capabilities=offered)) as client:
        with pytest.raises(ExtendedAgentCardNotConfiguredError):
            await client.get_extended_card()


@one_engine
async def test_an_extended_card_that_is_not_offered_is_unsupported_in_1_0_and_not_configured_in_0_3(
    connected: Connect, dialect: Dialect
) -> None:
    async with connected(Echo()) as client:
        client.agent_card.capabilities.extended_agent_card = True  # the client asks although the card says no
        with pytest.raises(A2AError, match="no extended card") as refused:
            await client.get_extended_card()
    wanted = ExtendedAgentCardNotConfiguredError if dialect.version == "0.3" else UnsupportedOperationError
    assert type(refused.value) is wanted


@one_engine
async def test_the_extended_card_is_what_its_provider_makes(connected: Connect) -> None:
    async def provide(request: Request) -> AgentCardConfig:
        return card(version="9.9.9")

    async with connected(Echo(), agent_card=card(), extended_card_provider=provide) as client:
        assert (await client.get_extended_card()).version == "9.9.9"


@one_engine
async def test_a_required_extension_must_be_declared(connected: Connect) -> None:
    required = card(extensions=[ExtensionConfig(uri="https://example.com/ext/v1", required=True)])
    async with connected(Echo(), agent_card=required) as client:
        with pytest.raises(ExtensionSupportRequiredError, match=r"example\.com"):
            await client.send("hi")
    declared = {"extensions": ["https://example.com/ext/v1"]}
    async with connected(Echo(), agent_card=required, client=declared) as client:
        assert (await client.send("hi")).text == "Echo: hi"


@one_engine
async def test_a_client_of_0_3_declares_extensions_under_the_name_they_have_there(
    connected: Connect, dialect: Dialect
) -> None:
    seen: list[str] = []

    class Sees(A2AMiddleware):
        async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
            seen.append(request.headers.get("x-a2a-extensions", ""))

    async with connected(Echo(), middlewares=[Sees()], client={"extensions": ["urn:a", "urn:b"]}) as client:
        await client.send("hi")
    assert seen == ["urn:a,urn:b" if dialect.version == "0.3" else ""]


@one_engine
async def test_who_has_no_token_is_not_let_in_and_who_has_one_sees_their_own_tasks(connected: Connect) -> None:
    async def verify(token: str) -> dict[str, Any] | None:
        return {"sub": token} if token in {"ann", "bob"} else None

    guarded = {"middlewares": [BearerTokenMiddleware(verify)]}
    async with connected(Echo(), **guarded) as client:
        with pytest.raises(AuthenticationRequiredError):
            await client.send("hi")
    async with connected(Echo(), **guarded, client={"headers": {"Authorization": "Bearer ann"}}) as client:
        assert (await client.send("hi")).completed


class Ends(Worker):
    """Ends as the message says."""

    async def handle(self, ctx: TaskContext) -> None:
        match ctx.user_text:
            case "fail":
                await ctx.fail("It did not work")
            case "reject":
                await ctx.reject("Not my business")
            case "auth":
                await ctx.request_auth("Please sign in", schemes=["Bearer"])


@pytest.mark.parametrize(
    ("wish", "state", "text"),
    [
        ("fail", "failed", "It did not work"),
        ("reject", "rejected", "Not my business"),
        ("auth", "auth-required", "Please sign in"),
    ],
)
@one_engine
async def test_how_a_task_ended_is_told_with_what_was_said(
    connected: Connect, wish: str, state: str, text: str
) -> None:
    async with connected(Ends()) as client:
        result = await client.send(wish)
        assert (result.state, result.text) == (state, text)
        streamed = [event async for event in client.stream(wish)][-1]
        assert (streamed.state, streamed.text) == (state, text)


@one_dialect
async def test_a_refused_message_changes_nothing(connected: Connect) -> None:
    async with connected(Asks()) as client:
        asked = await client.send("hello")
        before = (await client.get_task(asked.task_id)).raw_task
        with pytest.raises(ContentTypeNotSupportedError):
            await client.send([Part(url="https://x.test/a", media_type="image/png")], task_id=asked.task_id)
        assert (await client.get_task(asked.task_id)).raw_task == before
