"""Tools written in Python, and an agent that may use them as a test says."""

from __future__ import annotations

from typing import Any

from errands.agents.tools.python import tool
from tests.agents.rig import AGENT


class Shop:
    """Tools that keep what they were called with."""

    def __init__(self) -> None:
        self.paid: list[dict[str, Any]] = []
        shop = self

        @tool
        async def find(number: str) -> dict[str, str]:
            """Finds an order."""
            return {"number": number, "card": "4111 1111"}

        @tool
        async def pay(amount: int, customer: str = "nobody") -> dict[str, int]:
            """Pays money back."""
            shop.paid.append({"amount": amount, "customer": customer})
            return {"paid": amount}

        @tool
        async def audit(what: str) -> str:
            """Notes something."""
            if what == "forbidden":
                raise ValueError(what)
            return f"noted {what}"

        self.tools = [find, pay, audit]


def agent(capabilities: str = "", more: str = "") -> str:
    """The manifest of an agent that may find orders, with more capabilities and more fields."""
    return f"{AGENT}\ncapabilities:\n  find: '*'\n{capabilities}\n{more}"
