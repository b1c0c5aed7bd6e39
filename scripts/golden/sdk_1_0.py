"""Record a2a-sdk 1.x as client and server, in A2A 1.0 and in its form of 0.3: python sdk_1_0.py VERSION OUT"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from a2a import types as t
from a2a.client.transports.jsonrpc import JsonRpcTransport
from a2a.client.transports.rest import RestTransport
from a2a.compat.v0_3.jsonrpc_transport import CompatJsonRpcTransport
from a2a.compat.v0_3.rest_transport import CompatRestTransport
from a2a.helpers import proto_helpers as h
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskUpdater
from recorder import Recorder, serving
from starlette.applications import Starlette

TRANSPORTS = {
    "jsonrpc": JsonRpcTransport,
    "rest": RestTransport,
    "jsonrpc-0.3": CompatJsonRpcTransport,
    "rest-0.3": CompatRestTransport,
}
ALL_PARTS = [
    h.new_text_part("héllo \U0001f30d"),
    h.new_raw_part(bytes(range(256)), "application/octet-stream", "all.bin"),
    h.new_url_part("https://files.example/a.png", "image/png", "a.png"),
    h.new_data_part({"n": 3, "nested": {"list": [1, "two", None, True]}}),
    h.new_data_part(["no", "object"]),
]


class Agent(AgentExecutor):
    """Do what the first words of the message say."""

    def __init__(self) -> None:
        #: The event that a message "wait" waits for.
        self.gate = asyncio.Event()

    async def execute(self, context: RequestContext, queue: EventQueue) -> None:
        words = context.get_user_input()
        if words.startswith("direct"):
            await queue.enqueue_event(h.new_text_message("here you are", context_id=context.context_id))
            return
        task = context.current_task
        if task is None:
            task = h.new_task_from_user_message(context.message)
            await queue.enqueue_event(task)
        updater = TaskUpdater(queue, task.id, task.context_id)
        await updater.start_work()
        if words.startswith("ask"):
            await updater.requires_input(updater.new_agent_message([h.new_text_part("which one?")]))
        elif words.startswith("wait"):
            await self.gate.wait()
            await updater.complete()
        elif words.startswith("chunks"):
            await updater.add_artifact([h.new_text_part("one ")], artifact_id="a-1", name="story")
            await updater.add_artifact([h.new_text_part("two")], artifact_id="a-1", append=True, last_chunk=True)
            await updater.complete()
        else:
            await updater.add_artifact(list(context.message.parts), artifact_id="a-1", name="copy")
            await updater.complete(updater.new_agent_message([h.new_text_part("done")]))

    async def cancel(self, context: RequestContext, queue: EventQueue) -> None:
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()


def card() -> t.AgentCard:
    return t.AgentCard(
        name="golden",
        description="answers in known ways",
        version="1.0.0",
        supported_interfaces=[
            t.AgentInterface(url=f"http://agent.example/{binding}", protocol_binding=binding, protocol_version=version)
            for version in ("1.0", "0.3")
            for binding in ("JSONRPC", "HTTP+JSON")
        ],
        capabilities=t.AgentCapabilities(streaming=True, push_notifications=True, extended_agent_card=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[t.AgentSkill(id="copy", name="Copy", description="copies", tags=["copy"], examples=["copy this"])],
        security_schemes={
            "key": t.SecurityScheme(api_key_security_scheme=t.APIKeySecurityScheme(name="X-Key", location="header")),
            "bearer": t.SecurityScheme(http_auth_security_scheme=t.HTTPAuthSecurityScheme(scheme="bearer")),
        },
        security_requirements=[
            t.SecurityRequirement(schemes={"key": t.StringList()}),
            t.SecurityRequirement(schemes={"bearer": t.StringList()}),
        ],
        provider=t.AgentProvider(organization="Example", url="https://example.org"),
    )


def params(words: str, *parts: t.Part, number: int, **configuration: Any) -> t.SendMessageRequest:
    message = t.Message(role=t.Role.ROLE_USER, message_id=f"m-{number}", parts=[h.new_text_part(words), *parts])
    return t.SendMessageRequest(message=message, configuration=t.SendMessageConfiguration(**configuration))


async def drain(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass


async def talk(client: Any, recorder: Recorder, agent: Agent) -> None:
    with recorder.recording("send"):
        sent = await client.send_message(
            params("copy", number=1, history_length=5, accepted_output_modes=["text/plain"])
        )
        done = sent.task
    with recorder.recording("send-parts"):
        await client.send_message(params("copy", *ALL_PARTS, number=2))
    with recorder.recording("send-input-required"):
        asked = (await client.send_message(params("ask", number=3))).task
    with recorder.recording("send-again"):
        again = params("copy", number=4)
        again.message.task_id, again.message.context_id = asked.id, asked.context_id
        await client.send_message(again)
    with recorder.recording("send-direct"):
        await client.send_message(params("direct", number=5))
    with recorder.recording("send-at-once"):
        waiting = (await client.send_message(params("wait", number=6, return_immediately=True))).task
    with recorder.recording("stream"):
        await drain(client.send_message_streaming(params("chunks", number=7)))
    with recorder.recording("stream-input-required"):
        await drain(client.send_message_streaming(params("ask", number=8)))
    with recorder.recording("stream-direct"):
        await drain(client.send_message_streaming(params("direct", number=9)))
    with recorder.recording("get"):
        await client.get_task(t.GetTaskRequest(id=done.id, history_length=1))
    with recorder.recording("get-not-found"):
        await client.get_task(t.GetTaskRequest(id="nobody"))
    with recorder.recording("list"):
        await client.list_tasks(t.ListTasksRequest(page_size=2, status=t.TaskState.TASK_STATE_COMPLETED))
    with recorder.recording("push-set"):
        info = t.AuthenticationInfo(scheme="Bearer", credentials="c")
        config = {"id": "p-1", "url": "http://hook.example/", "token": "token"}
        await client.create_task_push_notification_config(
            t.TaskPushNotificationConfig(task_id=waiting.id, authentication=info, **config)
        )
    with recorder.recording("push-get"):
        await client.get_task_push_notification_config(
            t.GetTaskPushNotificationConfigRequest(task_id=waiting.id, id="p-1")
        )
    with recorder.recording("push-list"):
        await client.list_task_push_notification_configs(t.ListTaskPushNotificationConfigsRequest(task_id=waiting.id))
    with recorder.recording("push-delete"):
        await client.delete_task_push_notification_config(
            t.DeleteTaskPushNotificationConfigRequest(task_id=waiting.id, id="p-1")
        )
    with recorder.recording("cancel"):
        await client.cancel_task(t.CancelTaskRequest(id=waiting.id))
    with recorder.recording("cancel-not-cancelable"):
        await client.cancel_task(t.CancelTaskRequest(id=done.id))
    with recorder.recording("cancel-not-found"):
        await client.cancel_task(t.CancelTaskRequest(id="nobody"))
    with recorder.recording("extended-card"):
        await client.get_extended_agent_card(t.GetExtendedAgentCardRequest())
    await resubscribe(client, recorder, agent)


async def resubscribe(client: Any, recorder: Recorder, agent: Agent) -> None:
    task = (await client.send_message(params("wait", number=10, return_immediately=True))).task

    async def follow() -> None:
        with recorder.recording("resubscribe"):
            await drain(client.subscribe(t.SubscribeToTaskRequest(id=task.id)))

    following = asyncio.create_task(follow())
    # The subscription gives no sign before the first event.
    await asyncio.sleep(1)
    agent.gate.set()
    await asyncio.wait_for(following, 10)


async def record(version: str, out: Path, name: str) -> None:
    agent = Agent()
    handler = DefaultRequestHandler(
        agent,
        InMemoryTaskStore(),
        card(),
        push_config_store=InMemoryPushNotificationConfigStore(),
        extended_agent_card=card(),
    )
    routes = [
        *create_agent_card_routes(card()),
        *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
        *create_rest_routes(handler, enable_v0_3_compat=True),
    ]
    recorder = Recorder(out, f"{version}-{name}")
    # The SDK's 1.0 transports leave this header to the client around them; its 0.3 transports set it.
    headers = {} if name.endswith("0.3") else {"A2A-Version": "1.0"}
    http = httpx.AsyncClient(transport=recorder, timeout=10, headers=headers)
    async with serving(Starlette(routes=routes)) as url, http:
        with recorder.recording("card"):
            await http.get(f"{url}/.well-known/agent-card.json")
        address = f"{url}/" if name.startswith("jsonrpc") else url
        await talk(TRANSPORTS[name](http, card(), address), recorder, agent)
    recorder.write()


if __name__ == "__main__":
    for name in TRANSPORTS:
        asyncio.run(record(sys.argv[1], Path(sys.argv[2]), name))
