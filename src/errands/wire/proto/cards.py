"""The agent card as protobuf, by way of its JSON: it is asked for rarely, and its JSON is the same in 1.0.

The card of 0.3 has its interfaces, its security and the extended card in other places.
"""

from __future__ import annotations

from typing import Any

import msgspec
from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.types import a2a_pb2
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from errands.model.card import AgentCard
from errands.wire import generous

_OLD_VERSION = "0.3"


def write_card(card: AgentCard) -> Any:
    return _parsed(msgspec.to_builtins(card), a2a_pb2.AgentCard())


def read_card(card: Any) -> AgentCard:
    return _decoded(MessageToDict(card))


def write_old_card(card: AgentCard) -> Any:
    """The card of 0.3: one main interface and the others, of those that speak it if there are any."""
    values: dict[str, Any] = msgspec.to_builtins(card)
    interfaces = values.pop("supportedInterfaces")
    spoken = [one for one in interfaces if one["protocolVersion"].startswith(_OLD_VERSION)] or interfaces
    others = [{"url": one["url"], "transport": one["protocolBinding"]} for one in spoken]
    main = others.pop(0) if others else {"url": "", "transport": ""}
    values |= {"url": main["url"], "preferredTransport": main["transport"], "additionalInterfaces": others}
    values["protocolVersion"] = "0.3.0"
    values["supportsAuthenticatedExtendedCard"] = values["capabilities"].pop("extendedAgentCard", False)
    for holder in (values, *values["skills"]):
        if "securityRequirements" in holder:
            holder["security"] = holder.pop("securityRequirements")
    return _parsed(values, a2a_v0_3_pb2.AgentCard())


def read_old_card(card: Any) -> AgentCard:
    values: dict[str, Any] = MessageToDict(card)
    version = values.pop("protocolVersion", _OLD_VERSION)
    interfaces = [{"url": values.pop("url", ""), "transport": values.pop("preferredTransport", "JSONRPC")}]
    interfaces += values.pop("additionalInterfaces", [])
    values["supportedInterfaces"] = [
        {"url": one.get("url", ""), "protocolBinding": one.get("transport", ""), "protocolVersion": version}
        for one in interfaces
    ]
    capabilities = values.setdefault("capabilities", {})
    capabilities["extendedAgentCard"] = values.pop("supportsAuthenticatedExtendedCard", False)
    for holder in (values, *values.get("skills", ())):
        if "security" in holder:
            holder["securityRequirements"] = holder.pop("security")
    return _decoded(values)


def _parsed(values: dict[str, Any], message: Any) -> Any:
    try:
        return ParseDict(values, message, ignore_unknown_fields=True)
    except ParseError as error:
        raise ValueError(f"the card cannot be put into protobuf: {error}") from None


def _decoded(values: dict[str, Any]) -> AgentCard:
    try:
        return generous.decode(AgentCard, msgspec.json.encode(values))
    except msgspec.MsgspecError as error:
        raise ValueError(f"no agent card: {error}") from None
