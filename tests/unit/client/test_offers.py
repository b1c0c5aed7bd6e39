"""What an agent offers beyond messages and tasks: push configs, the extended card, and what its card leaves out."""

from __future__ import annotations

import httpx
import pytest

from errands.client import AgentCapabilityError
from errands.errors import ConfigurationError, TaskNotFoundError
from errands.model.requests import (
    Empty,
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from tests.unit.client.agent import ScriptedAgent, card

pytestmark = pytest.mark.anyio


async def test_push_configs_can_be_set_read_listed_and_deleted(agent: ScriptedAgent) -> None:
    config = TaskPushNotificationConfig(url="https://hook.test", id="p1", task_id="t1")
    agent.plays(
        agent.result(config),
        agent.result(config),
        agent.result(ListTaskPushNotificationConfigsResponse(configs=[config], next_page_token="n")),
        agent.result(ListTaskPushNotificationConfigsResponse(configs=[config])),
        agent.result(ListTaskPushNotificationConfigsResponse(configs=[config])),
        agent.result(Empty()),
    )
    async with agent.client() as client:
        auth = {"scheme": "Bearer", "credentials": "x"}
        made = await client.set_push_config("t1", url="https://hook.test", token="k", authentication=auth)
        assert made == config
        assert await client.get_push_config("t1", "p1") == config
        assert await client.list_push_configs("t1") == [config, config]
        assert await client.get_push_config("t1") == config
        await client.delete_push_config("t1", "p1")
    created = agent.calls[0].params
    assert (created["url"], created["token"], created["authentication"]) == ("https://hook.test", "k", auth)
    assert agent.operations == [
        "CreateTaskPushNotificationConfig",
        "GetTaskPushNotificationConfig",
        "ListTaskPushNotificationConfigs",
        "ListTaskPushNotificationConfigs",
        "ListTaskPushNotificationConfigs",
        "DeleteTaskPushNotificationConfig",
    ]


async def test_a_task_without_push_configs_has_no_first_one(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(ListTaskPushNotificationConfigsResponse(configs=[])))
    async with agent.client() as client:
        with pytest.raises(TaskNotFoundError):
            await client.get_push_config("t1")


async def test_deleting_succeeds_whatever_the_empty_answer_looks_like(agent: ScriptedAgent) -> None:
    empty = [agent.result(None), agent.result(Empty())]
    if agent.binding == "http+json":
        empty.append(httpx.Response(204))
    agent.plays(*empty)
    async with agent.client() as client:
        for _ in empty:
            await client.delete_push_config("t1", "p1")
    assert not agent.script


async def test_the_extended_card_replaces_the_public_one(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(card(name="Extended")))
    async with agent.client() as client:
        assert (await client.get_extended_card()).name == "Extended"
        assert client.agent_name == "Extended"


async def test_what_the_card_does_not_offer_is_not_even_asked_for(agent: ScriptedAgent) -> None:
    agent.card = card(streaming=False, push=False, extended=False)
    async with agent.client() as client:
        with pytest.raises(AgentCapabilityError, match="streaming") as caught:
            client.stream("x")
        assert (caught.value.agent_name, caught.value.capability) == ("Fake", "streaming")
        with pytest.raises(AgentCapabilityError):
            client.subscribe("t1")
        with pytest.raises(AgentCapabilityError):
            await client.list_push_configs("t1")
        with pytest.raises(AgentCapabilityError):
            await client.send("x", push_url="https://hook.test")
        with pytest.raises(AgentCapabilityError):
            await client.get_extended_card()
        agent.card.capabilities.streaming = True
        with pytest.raises(AgentCapabilityError, match="push"):
            client.stream("x", push_url="https://hook.test")
    assert not agent.calls


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"scheme": "Bearer"}, {"scheme": "Bearer"}),
        ({"schemes": ["Basic"], "credentials": "x"}, {"scheme": "Basic", "credentials": "x"}),
    ],
)
async def test_credentials_for_the_webhook_may_be_written_as_in_either_version(
    agent: ScriptedAgent, given: dict[str, object], sent: dict[str, object]
) -> None:
    agent.plays(agent.result(TaskPushNotificationConfig(url="https://hook.test")))
    async with agent.client() as client:
        await client.set_push_config("t1", url="https://hook.test", authentication=given)
        with pytest.raises(ConfigurationError, match="scheme"):
            await client.set_push_config("t1", url="https://hook.test", authentication={"credentials": "x"})
    assert agent.calls[0].params["authentication"] == sent
