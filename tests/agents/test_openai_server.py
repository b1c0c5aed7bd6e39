"""The test server as a process: the same scripts over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from errands.agents.models import model_from
from errands.agents.models.base import FunctionSaid, ModelSaid
from tests.agents.support import Heard, model_process, question, said_by_user

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url() -> Iterator[str]:
    with model_process(ROOT / "examples" / "support-agent" / "scripted.json") as url:
        yield url


async def test_a_process_answers_by_the_script_and_tells_what_it_was_asked(url: str) -> None:
    model = model_from("openai/support", base_url=url)
    heard = Heard()
    user = said_by_user("Where is A-17?")
    first = await model.ask(question(user, model=model.resolve(None)), heard)
    result = FunctionSaid(first.calls[0].id, "orders", {"number": "A-17", "item": "kettle", "paid": 45})
    second = await model.ask(question(user, ModelSaid(calls=first.calls), result, model="openai/support"), heard)
    await model.close()
    assert (first.calls[0].name, first.calls[0].arguments) == ("orders", {"number": "A-17"})
    assert second.text == "Order A-17 is a kettle for 45. If something is wrong, ask for a refund for A-17."
    assert "".join(heard.pieces) == second.text
    async with httpx.AsyncClient() as client:
        requests = (await client.get(httpx.URL(url).join("/requests"))).json()
    assert [request["body"]["model"] for request in requests] == ["support", "support"]


async def test_a_process_can_be_told_what_to_answer_next(url: str) -> None:
    async with httpx.AsyncClient() as client:
        replies = [{"status": 503, "headers": {"Retry-After": "0"}}, {"text": "Told so."}]
        await client.post(httpx.URL(url).join("/replies"), json=replies)
    model = model_from("openai/anything", base_url=url)
    answer = await model.ask(question(model="openai/anything"))
    await model.close()
    assert answer.text == "Told so."
