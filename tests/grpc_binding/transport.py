"""errands' own client over gRPC, at the level of its transport."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from errands.client.agent_session import AgentSession, RetryPolicy
from errands.client.grpc_transport import GrpcTransport
from errands.client.http_requests import MAX_ANSWER
from errands.model.card import AgentCapabilities, AgentCard
from errands.model.core import Message, Part, Role
from errands.model.requests import SendMessageConfiguration, SendMessageRequest
from errands.operations import OPERATIONS


@asynccontextmanager
async def transport_to(
    address: str, version: str = "1.0", max_answer_bytes: int = MAX_ANSWER, /, **headers: str
) -> AsyncIterator[GrpcTransport]:
    transport = GrpcTransport(address, version, headers=headers, timeout=60.0, max_answer_bytes=max_answer_bytes)
    try:
        yield transport
    finally:
        await transport.close()


def sending(text: str = "hi", *, immediately: bool = False, parts: list[Part] | None = None) -> SendMessageRequest:
    message = Message(message_id=f"m-{text}", role=Role.USER, parts=parts or [Part(text=text)])
    return SendMessageRequest(message=message, configuration=SendMessageConfiguration(return_immediately=immediately))


async def ask(transport: GrpcTransport, operation: str, request: Any, timeout: float | None = None) -> Any:
    return await transport.call(OPERATIONS[operation], request, read_timeout=timeout)


def stream(transport: GrpcTransport, operation: str, request: Any, **options: Any) -> Any:
    options = {"last_event_id": None, "read_timeout": None, **options}
    return transport.stream(OPERATIONS[operation], request, **options)


def session_of(transport: GrpcTransport) -> AgentSession:
    offered = AgentCard(
        name="Agent",
        description="",
        version="1",
        supported_interfaces=[],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=[],
        default_output_modes=[],
        skills=[],
    )
    return AgentSession(offered, transport, RetryPolicy(delay=0.01), version="1.0", tenant=None, timeout=60.0)
