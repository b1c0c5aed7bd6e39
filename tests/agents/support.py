"""Questions, and a model at the test server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from errands.agents.models.any_llm import AnyLlmModel
from errands.agents.models.base import Offer, Question, Said, UserSaid
from tests.agents import openai_server
from tests.agents.openai_server import OpenAIServer

KEY = "sk-test-0123456789abcdef"
OFFERS = (
    Offer("orders", "Finds an order.", {"type": "object", "properties": {"number": {"type": "string"}}}),
    Offer("refunds_pay", "Pays money back.", {"type": "object", "properties": {}}),
)


@contextmanager
def model_process(script: Path) -> Iterator[str]:
    """The base URL of the test server as a process of its own, which answers by a script."""
    program = [sys.executable, str(openai_server.__file__), "--script", str(script)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("serving ").strip()
        finally:
            process.kill()


def said_by_user(text: str) -> UserSaid:
    return UserSaid([{"mimeType": "text/plain", "text": text}])


def question(*said: Said, **changes: Any) -> Question:
    fields: dict[str, Any] = {"model": "openai/gpt-test", "system": "Be kind.", "said": said or (said_by_user("Hi"),)}
    return Question(**{**fields, **changes})


@dataclass
class Heard:
    """Keeps the pieces of a streamed text."""

    pieces: list[str] = field(default_factory=list)

    async def __call__(self, text: str) -> None:
        self.pieces.append(text)


def model_at(server: OpenAIServer, **options: Any) -> AnyLlmModel:
    return AnyLlmModel(base_url=server.url, api_key=KEY, **options)
