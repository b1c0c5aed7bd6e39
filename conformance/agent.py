"""The agent that the public conformance kits test: `errands serve conformance/agent.py`.

The beginning of a message's id selects the behaviour. Environment variables configure the agent:

    CONFORMANCE_VERSIONS=1.0      serve only these protocol versions, separated by commas
    CONFORMANCE_CAPABILITIES=     offer these, separated by commas; default: all
    CONFORMANCE_EXTENSION=URI     require this extension
    CONFORMANCE_SECURITY=bearer   require this for the extended card
    CONFORMANCE_OTHERWISE=NAME    the behaviour for other message ids; default: tck-complete-task
    CONFORMANCE_DEFAULTS=NAMES    keep errands' defaults for these: input_modes, idempotency_window
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from errands import (
    A2AServer,
    AgentCardConfig,
    CapabilitiesConfig,
    ExtensionConfig,
    Settings,
    SkillConfig,
    TaskContext,
    Worker,
)
from errands.model.card import HTTPAuthSecurityScheme, SecurityScheme

#: The kit waits two seconds for a stream before it checks whether the task continues.
LONG_S = 4.0

Behaviour = Callable[[TaskContext], Awaitable[None]]


async def complete(ctx: TaskContext) -> None:
    await ctx.respond("Hello from TCK")


async def ask(ctx: TaskContext) -> None:
    await ctx.request_input("What else?")


async def answer_directly(ctx: TaskContext) -> None:
    await ctx.reply_directly("Direct message response")


async def reject(ctx: TaskContext) -> None:
    await ctx.reject("rejected")


async def take_long(ctx: TaskContext) -> None:
    await ctx.send_status("working")
    await asyncio.sleep(LONG_S)
    await ctx.complete()


async def write_in_chunks(ctx: TaskContext) -> None:
    await ctx.emit_text_artifact("chunk-1 ")
    await ctx.emit_text_artifact("chunk-2", append=True, last_chunk=True)
    await ctx.complete()


def produce(**part: Any) -> Behaviour:
    """Return a behaviour that emits one artifact with this part and completes."""

    async def behave(ctx: TaskContext) -> None:
        await ctx.emit_artifact(artifact_id="artifact", last_chunk=True, **part)
        await ctx.complete()

    return behave


FILE = {"filename": "output.txt", "media_type": "text/plain"}

BEHAVIOURS: dict[str, Behaviour] = {
    "tck-complete-task": complete,
    "tck-input-required": ask,
    "tck-message-response": answer_directly,
    "tck-reject-task": reject,
    "tck-artifact-text": produce(text="Generated text content"),
    "tck-artifact-file": produce(file_bytes=b"tck", **FILE),
    "tck-artifact-file-url": produce(file_url="https://example.com/output.txt", **FILE),
    "tck-artifact-data": produce(data={"key": "value", "count": 42}),
    "tck-stream-001": produce(text="Stream hello from TCK"),
    "tck-stream-002": complete,
    "tck-stream-003": produce(text="Stream task lifecycle"),
    "tck-stream-ordering-001": produce(text="Ordered output"),
    "tck-stream-artifact-text": produce(text="Streamed text content"),
    "tck-stream-artifact-file": produce(file_bytes=b"tck", **FILE),
    "tck-stream-artifact-chunked": write_in_chunks,
    "test-resubscribe-message-id": take_long,
}
LONGEST_FIRST = sorted(BEHAVIOURS, key=len, reverse=True)
OTHERWISE = os.environ.get("CONFORMANCE_OTHERWISE", "tck-complete-task")


class Conformance(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        name = next((prefix for prefix in LONGEST_FIRST if ctx.message_id.startswith(prefix)), OTHERWISE)
        await BEHAVIOURS[name](ctx)


def listed(variable: str, default: str = "") -> list[str]:
    return [word for word in os.environ.get(variable, default).split(",") if word]


DEFAULTS = listed("CONFORMANCE_DEFAULTS")


def card(*extra_skills: SkillConfig) -> AgentCardConfig:
    everything = "streaming,push_notifications,extended_agent_card"
    offered: dict[str, Any] = {"push_notifications": False}
    offered |= dict.fromkeys(listed("CONFORMANCE_CAPABILITIES", everything), True)
    skill = SkillConfig(id="conformance", name="Conformance", description="Does what a kit asks.", tags=["test"])
    bearer = SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer"))
    # The kit for 1.0 sends a part of an unknown type and expects it to be accepted. The kit for 0.3 needs the mode
    # "data"; with "file" it would send a file with `url` where 0.3 has `uri`.
    modes: Any = {} if "input_modes" in DEFAULTS else {"input_modes": ["*/*", "text", "data"]}
    return AgentCardConfig(
        name="errands conformance agent",
        description="Does what the conformance kits ask it to.",
        capabilities=CapabilitiesConfig(**offered),
        extensions=[ExtensionConfig(uri=uri, required=True) for uri in listed("CONFORMANCE_EXTENSION")],
        skills=[skill, *extra_skills],
        security_schemes=dict.fromkeys(listed("CONFORMANCE_SECURITY"), bearer) or None,
        **modes,
    )


async def extended_card(_request: Any) -> AgentCardConfig:
    return card(SkillConfig(id="more", name="More", description="Only for those who ask.", tags=["test"]))


def build() -> A2AServer:
    options: dict[str, Any] = {}
    if versions := listed("CONFORMANCE_VERSIONS"):
        options["protocol_versions"] = versions
    config = card()
    if config.capabilities.extended_agent_card:
        options["extended_card_provider"] = extended_card
    # The kits repeat one message and expect a new task each time.
    window = None if "idempotency_window" in DEFAULTS else 0.0
    settings = Settings.from_env(storage="memory", idempotency_window=window)
    return A2AServer(worker=Conformance(), agent_card=config, settings=settings, **options)


server = build()
