"""Record a2a-sdk 0.3 as client and server: python sdk_0_3.py VERSION OUT"""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from a2a import types as t
from a2a.client.transports import JsonRpcTransport, RestTransport
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskUpdater
from a2a.utils import new_agent_text_message, new_task
from recorder import Recorder, serving


def text(words: str) -> t.Part:
    return t.Part(root=t.TextPart(text=words))


ALL_PARTS = [
    t.Part(root=t.TextPart(text="héllo \U0001f30d", metadata={"n": 1})),
    t.Part(
        root=t.FilePart(
            file=t.FileWithBytes(
                bytes=base64.b64encode(bytes(range(256))).decode(), name="all.bin", mime_type="application/octet-stream"
            )
        )
    ),
    t.Part(
        root=t.FilePart(
            file=t.FileWithUri(uri="https://files.example/a.png", name="a.png", mime_type="image/png"),
            metadata={"k": "v"},
        )
    ),
    t.Part(root=t.DataPart(data={"n": 3, "nested": {"list": [1, "two", None, True]}})),
]


class Agent(AgentExecutor):
    """Do what the first words of the message say."""

    def __init__(self) -> None:
        #: The event that a message "wait" waits for.
        self.gate = asyncio.Event()

    async def execute(self, context: RequestContext, queue: EventQueue) -> None:
        words = context.get_user_input()
        if words.startswith("direct"):
            await queue.enqueue_event(new_agent_text_message("here you are", context.context_id))
            return
        task = context.current_task
        if task is None:
            task = new_task(context.message)
            await queue.enqueue_event(task)
        updater = TaskUpdater(queue, task.id, task.context_id)
        await updater.start_work()
        if words.startswith("ask"):
            await updater.requires_input(updater.new_agent_message([text("which one?")]), final=True)
        elif words.startswith("wait"):
            await self.gate.wait()
            await updater.complete()
        elif words.startswith("chunks"):
            await updater.add_artifact([text("one ")], artifact_id="a-1", name="story")
            await updater.add_artifact([text("two")], artifact_id="a-1", append=True, last_chunk=True)
            await updater.complete()
        else:
            await updater.add_artifact(list(context.message.parts), artifact_id="a-1", name="copy")
            await updater.complete(updater.new_agent_message([text("done")]))

    async def cancel(self, context: RequestContext, queue: EventQueue) -> None:
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()


def card(transport: str) -> t.AgentCard:
    return t.AgentCard(
        name="golden",
        description="answers in known ways",
        version="1.0.0",
        url="http://agent.example/",
        preferred_transport=transport,
        additional_interfaces=[t.AgentInterface(url="http://agent.example/rest", transport="HTTP+JSON")],
        capabilities=t.AgentCapabilities(streaming=True, push_notifications=True, state_transition_history=False),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[t.AgentSkill(id="copy", name="Copy", description="copies", tags=["copy"], examples=["copy this"])],
        security_schemes={
            "key": t.SecurityScheme(root=t.APIKeySecurityScheme(name="X-Key", in_=t.In.header)),
            "bearer": t.SecurityScheme(root=t.HTTPAuthSecurityScheme(scheme="bearer")),
        },
        security=[{"key": []}, {"bearer": []}],
        supports_authenticated_extended_card=True,
        provider=t.AgentProvider(organization="Example", url="https://example.org"),
    )


def params(words: str, *parts: t.Part, number: int, **configuration: Any) -> t.MessageSendParams:
    message = t.Message(role=t.Role.user, message_id=f"m-{number}", parts=[text(words), *parts])
    return t.MessageSendParams(
        message=message, configuration=t.MessageSendConfiguration(**configuration) if configuration else None
    )


async def drain(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass


async def talk(client: Any, recorder: Recorder, agent: Agent) -> None:
    with recorder.recording("send"):
        done = await client.send_message(
            params("copy", number=1, blocking=True, history_length=5, accepted_output_modes=["text/plain"])
        )
    with recorder.recording("send-parts"):
        await client.send_message(params("copy", *ALL_PARTS, number=2, blocking=True))
    with recorder.recording("send-input-required"):
        asked = await client.send_message(params("ask", number=3, blocking=True))
    with recorder.recording("send-again"):
        again = params("copy", number=4, blocking=True)
        again.message.task_id, again.message.context_id = asked.id, asked.context_id
        await client.send_message(again)
    with recorder.recording("send-direct"):
        await client.send_message(params("direct", number=5, blocking=True))
    with recorder.recording("send-at-once"):
        waiting = await client.send_message(params("wait", number=6, blocking=False))
    with recorder.recording("stream"):
        await drain(client.send_message_streaming(params("chunks", number=7)))
    with recorder.recording("stream-input-required"):
        await drain(client.send_message_streaming(params("ask", number=8)))
    with recorder.recording("stream-direct"):
        await drain(client.send_message_streaming(params("direct", number=9)))
    with recorder.recording("get"):
        await client.get_task(t.TaskQueryParams(id=done.id, history_length=1))
    with recorder.recording("get-not-found"):
        await client.get_task(t.TaskQueryParams(id="nobody"))
    with recorder.recording("push-set"):
        config = t.PushNotificationConfig(
            id="p-1",
            url="http://hook.example/",
            token="token",
            authentication=t.PushNotificationAuthenticationInfo(schemes=["Bearer"], credentials="c"),
        )
        await client.set_task_callback(
            t.TaskPushNotificationConfig(task_id=waiting.id, push_notification_config=config)
        )
    with recorder.recording("push-get"):
        await client.get_task_callback(
            t.GetTaskPushNotificationConfigParams(id=waiting.id, push_notification_config_id="p-1")
        )
    with recorder.recording("cancel"):
        await client.cancel_task(t.TaskIdParams(id=waiting.id))
    with recorder.recording("cancel-not-cancelable"):
        await client.cancel_task(t.TaskIdParams(id=done.id))
    with recorder.recording("cancel-not-found"):
        await client.cancel_task(t.TaskIdParams(id="nobody"))
    with recorder.recording("extended-card"):
        await client.get_card()
    await resubscribe(client, recorder, agent)


async def resubscribe(client: Any, recorder: Recorder, agent: Agent) -> None:
    task = await client.send_message(params("wait", number=10, blocking=False))

    async def follow() -> None:
        with recorder.recording("resubscribe"):
            await drain(client.resubscribe(t.TaskIdParams(id=task.id)))

    following = asyncio.create_task(follow())
    # The subscription gives no sign before the first event.
    await asyncio.sleep(1)
    agent.gate.set()
    await asyncio.wait_for(following, 10)


async def record(version: str, out: Path, name: str) -> None:
    transport, app_type, client_type = {
        "jsonrpc": ("JSONRPC", A2AStarletteApplication, JsonRpcTransport),
        "rest": ("HTTP+JSON", A2ARESTFastAPIApplication, RestTransport),
    }[name]
    agent = Agent()
    handler = DefaultRequestHandler(agent, InMemoryTaskStore(), push_config_store=InMemoryPushNotificationConfigStore())
    app = app_type(agent_card=card(transport), http_handler=handler, extended_agent_card=card(transport)).build()
    recorder = Recorder(out, f"{version}-{name}")
    async with serving(app) as url, httpx.AsyncClient(transport=recorder) as http:
        with recorder.recording("card"):
            await http.get(f"{url}/.well-known/agent-card.json")
        await talk(client_type(http, agent_card=card(transport), url=url), recorder, agent)
    recorder.write()


if __name__ == "__main__":
    for name in ("jsonrpc", "rest"):
        asyncio.run(record(sys.argv[1], Path(sys.argv[2]), name))
