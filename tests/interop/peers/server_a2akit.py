"""The interoperability agent on a2akit, over both its bindings: `python server_a2akit.py [SECONDS]`.

The seconds are those after which a blocking send is answered though the task is at work.
"""

import asyncio
import base64
import json
import sys

from a2akit import A2AServer, AgentCardConfig, CapabilitiesConfig, SkillConfig, TaskContext, Worker
from behaviour import DESCRIPTION, NAME, Behaviour
from parts_0_3 import plain_part
from serving import bound_socket, serve


class A2akitTurn:
    """a2akit's side of `Turn`."""

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
        await self._behaviour.act(A2akitTurn(ctx))


def card(*skills: str) -> AgentCardConfig:
    return AgentCardConfig(
        name=NAME,
        description=DESCRIPTION,
        capabilities=CapabilitiesConfig(streaming=True, extended_agent_card=True),
        input_modes=["text/plain", "application/json", "application/octet-stream", "application/pdf"],
        skills=[SkillConfig(id=name, name=name, description=DESCRIPTION, tags=["test"]) for name in skills],
    )


async def extended_card(_request: object) -> AgentCardConfig:
    return card("public", "extended")


server = A2AServer(
    worker=Interop(),
    agent_card=card("public"),
    additional_protocols=["http+json"],
    extended_card_provider=extended_card,
    blocking_timeout_s=float(sys.argv[1]) if sys.argv[1:] else None,
)
asyncio.run(serve(server.as_fastapi_app(), bound_socket()))
