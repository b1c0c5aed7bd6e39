"""An agent with a tool, as a process that writes its spans into a file: `clerk.py PORT FOLDER NAME ROLE`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import uvicorn
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from errands import A2AServer
from tests.processes import Process
from tests.tracing.collector import FileExporter

MANIFEST = """
kind: commonagents.info/v1beta2/agent
namespace: shop
name: clerk
description: Finds orders.
prompt: You are a clerk.
model: scripted
close_after: 1
capabilities:
  find: "*"
---
kind: commonagents.info/v1beta2/tool
namespace: shop
name: find
description: Finds orders.
actions:
  - name: find
    description: Finds an order.
    parameters: {properties: {number: {type: string}}}
    execute: {stateless_http: {method: POST, url: "URL/find", body: {number: "{parameters.number}"}}}
"""

SCRIPT = {
    "agents": {
        "clerk": [
            {"when": {"called": ["find"]}, "say": "It is on its way."},
            {"call": [{"function": "find", "arguments": {"number": "A-17"}}]},
        ],
    }
}


def write_agent(folder: Path, shop: str) -> None:
    """Write the manifest, whose tool is at the address `shop`, and the script of its model."""
    (folder / "agent.yaml").write_text(MANIFEST.replace("URL", shop), "utf-8")
    (folder / "scripted.json").write_bytes(msgspec.json.encode(SCRIPT))


class Clerk(Process):
    """A process of the agent in a folder. Its name is that of the file with its spans."""

    def __init__(self, folder: Path, name: str, role: str = "all") -> None:
        super().__init__("tests.tracing.clerk", str(folder), name, role)


if __name__ == "__main__":
    port, folder, name, role = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileExporter(folder / f"{name}-{os.getpid()}.spans")))
    trace.set_tracer_provider(provider)
    server = A2AServer.from_manifest(
        folder,
        model="scripted",
        storage=f"sqlite:///{folder / 'tasks.db'}",
        role=role,
        otel=True,
        grpc_port=0,
        outbound_allow="127.0.0.1",
        lease_seconds=1.0,
        poll_interval=0.05,
        max_attempts=10,
    )
    uvicorn.run(server.app, host="127.0.0.1", port=port, log_level="error")
