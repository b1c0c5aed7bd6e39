"""any-llm: an error says what to do, and no secret."""

from __future__ import annotations

import logging

import pytest

from errands.agents.models.any_llm import AnyLlmModel
from errands.agents.models.base import ModelError
from tests.agents.any_llm import asking
from tests.agents.openai_server import Reply
from tests.agents.support import KEY, Heard, question
from tests.ports import silent_port

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (
            Reply(status=401, error={"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}),
            ("rejected the API key: set ERRANDS_MODEL_API_KEY or OPENAI_API_KEY to a key that may use gpt-test"),
        ),
        (
            Reply(status=404, error={"message": "no such model", "code": "model_not_found"}),
            ("has no model gpt-test: check the agent's model, ERRANDS_MODEL and ERRANDS_MODEL_BASE_URL"),
        ),
        (
            Reply(status=400, error={"message": f"{KEY} is a strange temperature, like sk-proj-abcdef123456"}),
            "refused the request for gpt-test: … is a strange temperature, like …",
        ),
        (
            Reply(
                status=400, error={"message": "maximum context length is 8 tokens", "code": "context_length_exceeded"}
            ),
            ("the conversation is too long for gpt-test of openai: start a new task, or use one with a larger context"),
        ),
        (
            Reply(
                status=429,
                error={"message": "you are out of credit", "code": "insufficient_quota"},
                headers={"X-Should-Retry": "false"},
            ),
            "the account at openai has no credit left: add some, or use another key or model",
        ),
        (
            Reply(status=400, error={"message": "blocked by our content policy"}),
            "openai refused the content: blocked by our content policy",
        ),
    ],
)
async def test_an_error_says_what_to_do_and_has_no_secret(
    reply: Reply, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "errands")
    async with asking(reply) as (server, model):
        with pytest.raises(ModelError) as error:
            await model.ask(question())
    message = str(error.value)
    assert message.removeprefix(f"openai at {server.url} ") == told
    assert KEY not in message + caplog.text
    assert error.value.__cause__ is None
    assert len(server.requests) == 1


NOTHING = '{"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": []}'


@pytest.mark.parametrize("raw", ["", "not json", "{}", '{"choices": "none"}', NOTHING])
async def test_an_answer_that_makes_no_sense_is_an_error(raw: str, on_text: Heard | None) -> None:
    async with asking(*[Reply(raw=raw)] * 3) as (_, model):
        with pytest.raises(ModelError):
            await model.ask(question(), on_text)


@pytest.mark.parametrize("raw", ["", "<html>Welcome</html>"])
async def test_an_address_where_something_else_answers_is_told(raw: str, on_text: Heard | None) -> None:
    async with asking(*[Reply(raw=raw, headers={"Content-Type": "text/html"})] * 3) as (_, model):
        with pytest.raises(
            ModelError, match="check ERRANDS_MODEL_BASE_URL, which usually ends in /v1, and what answers"
        ):
            await model.ask(question(), on_text)


async def test_nobody_at_the_address_is_told_with_the_address_but_not_with_its_password() -> None:
    with silent_port() as port:
        model = AnyLlmModel(base_url=f"http://me:secret@127.0.0.1:{port}/v1?key=secret", retries=0)
        with pytest.raises(ModelError) as error:
            await model.ask(question())
        await model.close()
    assert str(error.value) == (
        f"openai at http://127.0.0.1:{port}/v1 cannot be reached (ConnectionRefusedError): check the network and "
        "ERRANDS_MODEL_BASE_URL"
    )
