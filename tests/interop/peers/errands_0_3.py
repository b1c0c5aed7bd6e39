"""The executor of a2a-sdk 0.3.26, as it is, under errands: `errands serve errands_0_3.py`."""

from typing import Any

from executor_0_3 import Interop, card

from errands import A2AServer


async def extended_card(_request: Any) -> Any:
    return card("http://elsewhere", "elsewhere:1", "public", "extended")


server = A2AServer(
    executor=Interop(),
    agent_card=card("http://elsewhere", "elsewhere:1", "public"),
    storage="memory",
    extended_card_provider=extended_card,
    push_notifications=False,
)
