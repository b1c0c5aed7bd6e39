"""`ctx.request_auth(...)`: ask the client for additional credentials."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from errands import A2AMiddleware, Part, RequestEnvelope, TaskContext
from errands.testing import http_client, serve
from tests.unit.support import Agent, run, running, said, signature, stream

pytestmark = pytest.mark.anyio


async def parts_of(**arguments: Any) -> list[Part] | None:
    """The parts of the message that asks for credentials."""
    details = arguments.pop("details", None)
    result = await run(lambda ctx: ctx.request_auth(details, **arguments))
    assert result.auth_required
    assert result.raw_task is not None
    message = result.raw_task.status.message
    return None if message is None else message.parts


def test_request_auth_has_the_documented_signature() -> None:
    assert signature(TaskContext.request_auth) == (
        "(details=None, *, schemes=None, credentials_hint=None, auth_url=None)"
    )


async def test_request_auth_transitions_the_task_to_auth_required(storage: str) -> None:
    result = await run(lambda ctx: ctx.request_auth("a token, please"), storage=storage)
    assert result.auth_required
    assert said(result) == "a token, please"


async def test_a_stream_ends_with_the_request(storage: str) -> None:
    ending = (await stream(lambda ctx: ctx.request_auth("a token, please"), storage=storage))[-1]
    assert (ending.state, ending.text, ending.is_final) == ("auth-required", "a token, please", True)


async def test_details_are_the_explanation_shown_to_the_user() -> None:
    assert await parts_of(details="I need a token.") == [Part(text="I need a token.")]


async def test_schemes_hint_and_url_are_told_as_data_beside_the_details(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.request_auth(
            "I need a GitHub token to access your repositories.",
            schemes=["Bearer"],
            credentials_hint="a token with the repo scope",
            auth_url="https://github.com/settings/tokens",
        )

    async with running(handle, storage) as client:
        sent = await client.send("hi")
        later = await client.get_task(sent.task_id)
    assert said(later) == "I need a GitHub token to access your repositories."
    assert later.data == {
        "schemes": ["Bearer"],
        "credentialsHint": "a token with the repo scope",
        "authUrl": "https://github.com/settings/tokens",
    }


@pytest.mark.parametrize(
    ("argument", "value", "key"),
    [
        ("schemes", ["Bearer", "Basic"], "schemes"),
        ("credentials_hint", "an API key", "credentialsHint"),
        ("auth_url", "https://login.test", "authUrl"),
    ],
)
async def test_each_argument_may_stand_alone(argument: str, value: object, key: str) -> None:
    assert await parts_of(**{argument: value}) == [Part(data={key: value}, media_type="application/json")]


async def test_request_auth_needs_no_argument_at_all() -> None:
    assert await parts_of() is None


async def test_the_token_example_of_the_reference_works(storage: str) -> None:
    class Tokens(A2AMiddleware):
        async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
            if "x-github-token" in request.headers:
                envelope.context["github_token"] = request.headers["x-github-token"]

    async def handle(ctx: TaskContext) -> None:
        if "github_token" not in ctx.request_context:
            await ctx.request_auth(
                "I need a GitHub token to access your repositories.",
                schemes=["Bearer"],
                auth_url="https://github.com/settings/tokens",
            )
            return
        await ctx.complete("12 repositories")

    server = serve(Agent(handle), storage=storage, middlewares=[Tokens()])
    message: dict[str, Any] = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "list them"}]}
    async with server, http_client(server) as http:
        first = (await http.post("/message:send", json={"message": message})).json()["task"]
        follow_up = {**message, "messageId": "m2", "taskId": first["id"]}
        answer = await http.post("/message:send", json={"message": follow_up}, headers={"x-github-token": "t0k3n"})
    assert first["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    assert answer.json()["task"]["artifacts"][0]["parts"] == [{"text": "12 repositories"}]
    assert "t0k3n" not in answer.text
