"""The agent of the interoperability tests on errands: `errands serve tests/interop/agent.py`."""

from __future__ import annotations

import base64
import json
from typing import Any

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, SkillConfig, TaskContext, Worker
from tests.interop.parts import plain_part
from tests.interop.peers.behaviour import DESCRIPTION, NAME, Behaviour


class ErrandsTurn:
    """errands' side of `Turn`."""

    def __init__(self, ctx: TaskContext) -> None:
        self._ctx = ctx
        self.first_text = ctx.history[0].text if ctx.history else None
        self.text = ctx.user_text
        self.parts = [plain_part(part) for part in ctx.parts]

    @property
    def is_cancelled(self) -> bool:
        return self._ctx.is_cancelled

    async def artifact(self, name: str, part: dict[str, str], *, append: bool = False, last: bool = True) -> None:
        await self._ctx.emit_artifact(
            artifact_id=name,
            text=part.get("text"),
            data=json.loads(part["data"]) if "data" in part else None,
            file_bytes=base64.b64decode(part["raw"]) if "raw" in part else None,
            file_url=part.get("url"),
            filename=part.get("name"),
            media_type=part.get("type"),
            append=append,
            last_chunk=last,
        )

    async def status(self, text: str) -> None:
        await self._ctx.send_status(text)

    async def complete(self) -> None:
        await self._ctx.complete()

    async def ask(self, question: str) -> None:
        await self._ctx.request_input(question)

    async def reply(self, text: str) -> None:
        await self._ctx.reply_directly(text)

    async def fail(self, reason: str) -> None:
        await self._ctx.fail(reason)


class Interop(Worker):
    def __init__(self) -> None:
        self._behaviour = Behaviour()

    async def handle(self, ctx: TaskContext) -> None:
        await self._behaviour.act(ErrandsTurn(ctx))


def card(*skills: str) -> AgentCardConfig:
    return AgentCardConfig(
        name=NAME,
        description=DESCRIPTION,
        capabilities=CapabilitiesConfig(streaming=True, push_notifications=False, extended_agent_card=True),
        input_modes=["*/*"],
        skills=[SkillConfig(id=name, name=name, description=DESCRIPTION, tags=["test"]) for name in skills],
    )


async def extended_card(_request: Any) -> AgentCardConfig:
    return card("public", "extended")


server = A2AServer(worker=Interop(), agent_card=card("public"), storage="memory", extended_card_provider=extended_card)
