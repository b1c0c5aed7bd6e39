"""`errands serve` with TLS: client certificates over HTTP and gRPC, in a process of its own."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import grpc
import httpx
import pytest
import trustme
from a2a.types import a2a_pb2_grpc

from tests.grpc_binding.serving import pb
from tests.unit.cli.processes import Served, errands

AGENT = """
from errands import TaskContext, Worker, AgentCardConfig, A2AServer, MutualTLSAuth, ApiKeyAuth

class Whoami(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete(ctx.owner)

server = A2AServer(
    worker=Whoami(),
    agent_card=AgentCardConfig(name="Whoami", description="Says who calls."),
    storage="memory",
    auth=[MutualTLSAuth(identity="common_name"), ApiKeyAuth({"k": "bob"})],
)
"""
MESSAGE = {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}


class Files:
    """A server's certificate, and an authority that issues those of clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clients, self.servers = trustme.CA(), trustme.CA()
        server = self.servers.issue_cert("127.0.0.1", "localhost")
        server.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
        self.clients.cert_pem.write_to_path(folder / "clients.pem")
        (folder / "agent.py").write_text(AGENT)

    def context(self, authority: trustme.CA | None) -> ssl.SSLContext:
        """What a client verifies the server with, and a certificate of an authority."""
        context = ssl.create_default_context()
        self.servers.configure_trust(context)
        if authority is not None:
            authority.issue_cert("robot@example.com", common_name="robot").configure_cert(context)
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_client_certificate_names_the_caller_over_http_and_grpc(files: Files) -> None:
    tls = ("--tls-certificate", "server.pem", "--tls-client-ca", "clients.pem")
    with Served("agent.py", "--grpc-port", "0", *tls, cwd=files.folder) as serving:
        url = serving.url
        [address] = re.findall(r"^grpc +(\S+)$", serving.greeting, re.MULTILINE)
        with httpx.Client(base_url=url, verify=files.context(files.clients)) as http:
            sent = http.post("/message:send", json=MESSAGE).json()
            assert sent["task"]["artifacts"][0]["parts"][0]["text"] == "robot"
            card = http.get("/.well-known/agent-card.json").json()
            assert {one["url"].partition("//")[0] for one in card["supportedInterfaces"]} == {"https:"}
        with httpx.Client(base_url=url, verify=files.context(None)) as http:
            assert http.get("/tasks").status_code == 401
            assert http.get("/tasks", headers={"X-API-Key": "k"}).status_code == 200
        with (
            httpx.Client(base_url=url, verify=files.context(trustme.CA())) as http,
            pytest.raises(httpx.TransportError),
        ):
            http.get("/tasks", headers={"X-API-Key": "k"})

        client = files.clients.issue_cert("robot@example.com", common_name="robot")
        credentials = grpc.ssl_channel_credentials(
            files.servers.cert_pem.bytes(), client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()
        )
        with grpc.secure_channel(address, credentials) as channel:
            stub = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
            assert stub.GetTask(pb.GetTaskRequest(id=sent["task"]["id"]), timeout=10).id == sent["task"]["id"]
        anonymous = grpc.ssl_channel_credentials(files.servers.cert_pem.bytes())
        with grpc.secure_channel(address, anonymous) as channel:
            stub = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.RpcError) as refused:
                stub.GetTask(pb.GetTaskRequest(id="t"), timeout=1)
            assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_files_that_cannot_be_used_are_told(files: Files) -> None:
    for option, file in (("--tls-certificate", "gone.pem"), ("--tls-certificate", "agent.py")):
        result = errands("serve", "agent.py", "--port", "0", option, file, cwd=files.folder)
        assert result.returncode != 0
        assert "the files for TLS cannot be used" in result.stderr
        assert "Traceback" not in result.stderr
