"""The executor of a2a-sdk 1.3.0, as it is, under errands: `errands serve errands_1_3.py`."""

from typing import Any

from executor_1_3 import Interop, card

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
