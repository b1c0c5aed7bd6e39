"""An agent whose messages choose what it does, and a server with its console."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import msgspec

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker
from errands.model.card_config import SkillConfig
from tests.live import live

#: A picture of one dot.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6364f8cf500f0003860180"
    "5a347d6b0000000049454e44ae426082"
)
MARKDOWN = """## Refund for order A-17

The order was placed on **12 May** and paid by card. A refund of `€ 42.00` is possible because

1. it arrived *late* (see [the tracking page](https://example.com/track/A-17)),
2. the customer has not used the voucher.

| Item | Quantity | Price |
|---|---:|---:|
| Espresso cups | 4 | € 32.00 |
| Shipping | 1 | € 10.00 |

```python
def refund(order: str, amount: float) -> Receipt:
    return payments.refund(order, cents=round(amount * 100))
```

> Refunds above € 100 need a review by a supervisor.
"""


class Trip(msgspec.Struct):
    city: Annotated[str, msgspec.Meta(description="Where to go", min_length=2)]
    nights: Annotated[int, msgspec.Meta(ge=1, le=30)]
    board: Literal["none", "breakfast", "full"] = "breakfast"
    window_seat: bool = False


class Desk(Worker):
    """Does what the first word of a message says; `gate` holds it back in the middle of a stream."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.messages: list[str] = []

    async def handle(self, ctx: TaskContext) -> None:
        word = ctx.user_text.partition(" ")[0]
        self.messages.append(ctx.message_id)
        if ctx.history:
            await self.go_on(ctx)
        elif word == "count":
            for number in range(1, 41):
                await ctx.emit_text_artifact(f"{number} ", append=True, artifact_id="numbers")
                if number == 20:
                    await asyncio.to_thread(self.gate.wait, 100)
            await ctx.complete()
        elif word == "trip":
            await ctx.request_input("Where would you like to go?", schema=Trip)
        elif word == "ask":
            await ctx.request_input("What is the order number?")
        elif word == "calendar":
            await ctx.request_auth("I need your calendar.", schemes=["oauth2"], auth_url="https://example.com/sign-in")
        elif word == "data":
            await ctx.complete_json({"order": "A-17", "paid": True, "items": [{"sku": "cup", "n": 4}]})
        elif word == "files":
            files = ", ".join(f"{file.filename} ({file.media_type})" for file in ctx.files)
            await ctx.emit_artifact(
                artifact_id="dot", file_bytes=PNG, media_type="image/png", filename="dot.png", name="A dot"
            )
            drawing = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"
            await ctx.emit_artifact(
                artifact_id="svg", file_bytes=drawing, media_type="image/svg+xml", filename="drawing.svg"
            )
            await ctx.complete(f"You sent {files}.")
        elif word == "wait":
            await ctx.send_status("Looking up the order")
            while not ctx.is_cancelled:
                await asyncio.sleep(0.01)
        elif word == "fail":
            await ctx.fail("The payment service answered: card declined")
        elif word == "two":
            for artifact in ("first", "second"):
                for piece in ("one ", "two ", "three"):
                    await ctx.emit_artifact(artifact_id=artifact, text=piece, append=True, name=f"The {artifact}")
            await ctx.complete()
        else:
            for piece in MARKDOWN.split(" "):
                await ctx.emit_text_artifact(f"{piece} ", append=True, artifact_id="answer")
            await ctx.complete()

    async def go_on(self, ctx: TaskContext) -> None:
        if any(isinstance(part.data, dict) for part in ctx.parts):
            trip = ctx.answer(Trip)
            assert trip is not None
            await ctx.complete(f"Booked {trip.nights} nights in {trip.city} with {trip.board}.")
        else:
            await ctx.complete(f"Thank you for: {ctx.user_text}")


def server(worker: Worker | None = None, *, streaming: bool = True, **options: Any) -> A2AServer:
    card = AgentCardConfig(
        name="Order desk",
        description="Answers questions about orders, and gives refunds where the rules allow it.",
        capabilities=CapabilitiesConfig(streaming=streaming),
        input_modes=["*/*"],
        skills=[
            SkillConfig(
                id="refund",
                name="Refund an order",
                description="Checks an order and pays back what the rules allow.",
                tags=["orders"],
                examples=["Refund order A-17", "Why was my refund refused?"],
            ),
            SkillConfig(
                id="trip",
                name="Book a trip",
                description="Asks where to go and for how long.",
                tags=["travel"],
                examples=["trip to the sea"],
            ),
        ],
    )
    settings = {"storage": "memory", "console": "on", **options}
    return A2AServer(worker=worker or Desk(), agent_card=card, **settings)


@contextmanager
def desk(worker: Worker | None = None, *, streaming: bool = True, **options: Any) -> Iterator[str]:
    """Serve it from a thread, and return the address."""
    with live(server(worker, streaming=streaming, **options).app, lifespan="on") as url:
        yield url
