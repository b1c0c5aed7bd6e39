"""any-llm: which provider, key and address a model's name leads to, before anything is asked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from errands.agents.models.any_llm import AnyLlmModel
from errands.agents.models.base import ModelError
from errands.errors import ConfigurationError
from tests.agents.any_llm import asking
from tests.agents.openai_server import OpenAIServer, Reply
from tests.agents.support import KEY, question

pytestmark = pytest.mark.anyio


def test_an_agent_without_a_model_is_answered_by_the_default() -> None:
    model = AnyLlmModel("openai/gpt-default", api_key=KEY)
    assert model.resolve(None) == "openai/gpt-default"
    assert model.resolve("openai/gpt-own") == "openai/gpt-own"


@pytest.mark.parametrize(
    ("made", "named", "builtins", "told"),
    [
        (
            lambda: AnyLlmModel(),
            None,
            (),
            "the agent names no model: add model: provider/model to it, or set ERRANDS_MODEL",
        ),
        (lambda: AnyLlmModel(), "gpt-4o", (), "invalid model 'gpt-4o': write provider/model, such as "),
        (lambda: AnyLlmModel(), "openai/gpt", (), "openai needs an API key: set OPENAI_API_KEY"),
        (lambda: AnyLlmModel(), "opnai/gpt", (), "unknown provider 'opnai': use one of anthropic, "),
        (lambda: AnyLlmModel(), "cohere/command", (), "cohere needs a package: pip install 'any-llm-sdk[cohere]'"),
        (
            lambda: AnyLlmModel(api_key=KEY),
            "openai/gpt",
            ("image-generation",),
            "model_capabilities: errands cannot request image-generation of openai: remove it",
        ),
        (
            lambda: AnyLlmModel(api_key=KEY),
            "anthropic/claude",
            ("web-search",),
            (
                "model_capabilities: errands cannot request web-search of anthropic: use a model of gemini, openai, "
                "openrouter, perplexity, vertexai, or remove it"
            ),
        ),
    ],
)
def test_what_cannot_work_is_refused_when_the_agent_is_loaded(
    made: Callable[[], AnyLlmModel], named: str | None, builtins: tuple[str, ...], told: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        made().resolve(named, builtins)
    assert str(error.value).startswith(told)


@pytest.mark.parametrize("url", ["models.example.com/v1", "ftp://example.com", "http://", "http://me:secret@host:port"])
def test_an_address_that_is_none_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        AnyLlmModel(base_url=url)
    told = "ERRANDS_MODEL_BASE_URL is not a URL: write it like https://models.example.com/v1"
    assert str(error.value) == told


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "any_llm", None)
    with pytest.raises(ConfigurationError, match=r"models need an extra \(.*\): pip install 'errands\[models\]'"):
        AnyLlmModel(api_key=KEY).resolve("openai/gpt-test")


def test_the_packages_of_providers_are_loaded_only_when_they_are_needed() -> None:
    program = "import sys, errands.agents.models; print({'any_llm', 'openai', 'yaml'} & sys.modules.keys())"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"


async def test_what_is_refused_when_it_is_loaded_is_refused_when_it_is_asked() -> None:
    with pytest.raises(ModelError, match="openai needs an API key: set OPENAI_API_KEY"):
        await AnyLlmModel().ask(question())


async def test_a_server_of_ones_own_needs_no_key_and_no_known_provider() -> None:
    async with OpenAIServer([Reply(text="Hello.")]) as server:
        model = AnyLlmModel("my-gateway/big", base_url=server.url)
        answer = await model.ask(question(model=model.resolve(None)))
        await model.close()
    assert (answer.text, answer.model) == ("Hello.", "my-gateway/big")


async def test_a_key_is_never_sent_to_another_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    async with OpenAIServer([Reply(text="Hello.")]) as other:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai-itself")
        monkeypatch.setenv("OPENAI_BASE_URL", other.url)
        model = AnyLlmModel("anthropic/claude", api_key=KEY)
        await model.ask(question(model=model.resolve("openai/gpt-test")))
        await model.close()
    assert other.requests[0].headers["authorization"] == "Bearer sk-of-openai-itself"


def test_a_key_that_could_be_meant_for_two_providers_is_refused() -> None:
    model = AnyLlmModel(api_key=KEY)
    model.resolve("openai/gpt-test")
    with pytest.raises(ConfigurationError, match="could be meant for openai or for anthropic: set ERRANDS_MODEL"):
        model.resolve("anthropic/claude")


async def test_closing_lets_go_of_connections_and_may_be_done_twice() -> None:
    async with asking(Reply(text="Hello.")) as (_, model):
        await model.ask(question())
        connections = model._made["openai"].client
        assert not connections.is_closed()
        await model.close()
        assert connections.is_closed()
        await model.close()
