"""`errands serve --grpc-port` as a process."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from errands.client.grpc_transport import GrpcTransport
from errands.model.core import Message, Part, Role
from errands.model.requests import GetExtendedAgentCardRequest, SendMessageRequest
from errands.operations import OPERATIONS
from tests.unit.cli.processes import Running, Served

ECHO = """
from errands import A2AServer, AgentCardConfig, TaskContext, Worker

class Echo(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete(f"Echo: {ctx.user_text}")

async def extended(request) -> AgentCardConfig:
    return AgentCardConfig(name="Extended", description="More.")

server = A2AServer(
    worker=Echo(),
    agent_card=AgentCardConfig(name="Echo", description="Echoes."),
    storage="memory",
    extended_card_provider=extended,
)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(ECHO)
    return path


@pytest.mark.anyio
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_an_agent_is_served_over_grpc_and_greets_with_its_address(program: Path, version: str) -> None:
    with Served(program, "--grpc-port", "0", cwd=program.parent) as served:
        [address] = re.findall(r"^grpc +(127\.0\.0\.1:\d+)$", served.greeting, re.MULTILINE)
        transport = GrpcTransport(address, version, headers={}, timeout=60.0)
        message = Message(message_id="m", role=Role.USER, parts=[Part(text="hi")])
        answer = await transport.call(OPERATIONS["SendMessage"], SendMessageRequest(message=message), read_timeout=60.0)
        assert answer.task.artifacts[0].parts == [Part(text="Echo: hi")]
        card = await transport.call(
            OPERATIONS["GetExtendedAgentCard"], GetExtendedAgentCardRequest(), read_timeout=60.0
        )
        assert card.supported_interfaces[0].url == f"{served.url}/"
        await transport.close()
        finished = served.stop()
        assert finished.returncode == 0
        assert finished.stderr == ""


def test_a_port_that_is_taken_is_told_in_a_sentence(program: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Running("serve", str(program), "--port", "0", "--grpc-port", str(port), cwd=program.parent) as served:
            finished = served.finish()
    assert finished.returncode == 2
    assert f"gRPC cannot listen on port {port} of 127.0.0.1" in " ".join(finished.stderr.split())
    assert "Traceback" not in finished.stderr
