"""The model port over any-llm's real client and a real socket: a question that is answered, or refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from errands.agents.models.any_llm import AnyLlmModel
from errands.agents.models.base import Answer, ModelError, OnText, Question
from tests.agents.openai_server import OpenAIServer, Reply
from tests.agents.support import KEY, model_at, question

# Loads the provider's package before a test watches the event loop.
AnyLlmModel(api_key=KEY).resolve("openai/gpt-test")


@asynccontextmanager
async def asking(*replies: Reply, **options: Any) -> AsyncIterator[tuple[OpenAIServer, AnyLlmModel]]:
    async with OpenAIServer(replies) as server:
        model = model_at(server, **options)
        try:
            yield server, model
        finally:
            await model.close()


async def ask(reply: Reply, asked: Question | None = None, on_text: OnText | None = None) -> Answer:
    async with asking(reply) as (_, model):
        return await model.ask(asked or question(), on_text)


async def refused(*replies: Reply, asked: Question | None = None, **options: Any) -> str:
    async with asking(*replies, **options) as (_, model):
        with pytest.raises(ModelError) as error:
            await model.ask(asked or question())
        return str(error.value)
