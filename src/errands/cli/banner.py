"""What a person reads when the server is up: who serves, where, on what, and what to try next."""

from __future__ import annotations

import functools
import shlex
import socket
from contextlib import suppress

from rich.text import Text

from errands.cli.terminal import clean, one_line, out
from errands.model.base import encode
from errands.model.core import Message, Part, Role
from errands.model.requests import SendMessageRequest
from errands.runtime.settings import ServerRole
from errands.server.app import A2AServer
from errands.server.asgi import CARD_PATHS, READY_PATH
from errands.server.http import callable_host, host_port
from errands.wire import v1_0

_ID = "MESSAGE-ID"


def address_of(listener: socket.socket) -> tuple[str, int]:
    """Where a client on this machine finds it."""
    host, port = listener.getsockname()[:2]
    return callable_host(host), port


def url_of(listener: socket.socket) -> str:
    """How a client on this machine calls it."""
    return f"http://{host_port(*address_of(listener))}"


def greeting(url: str) -> functools.partial[None]:
    """Greets for a server at `url`; picklable, as the reloader wants it."""
    return functools.partial(greet, url)


def greet(url: str, server: A2AServer) -> None:
    # Whoever reads it may have read enough (`errands serve … | head`), at which rich would exit; the server goes on.
    with suppress(BrokenPipeError, SystemExit):
        _print_facts(url, server)


def _print_facts(url: str, server: A2AServer) -> None:
    console = out()
    facts = {"agent": clean(f"{server.agent_card.name} {server.agent_card.version}")}
    if server.settings.role is not ServerRole.ALL:
        facts["role"] = server.settings.role
    takes_requests = server.settings.role is not ServerRole.WORKER
    facts |= {
        "url": (takes_requests and server.settings.public_url) or url,
        **({"card": url + CARD_PATHS[0]} if takes_requests else {"health": url + READY_PATH}),
        "storage": storage_of(server),
        **{name: one_line(value, 200) for name, value in server.facts.items()},
    }
    if takes_requests and not server.listens_locally and not server.asks_who_calls:
        facts["access"] = "whoever reaches this address may use the agent and see all tasks: there is no middleware"
    if server.grpc_port is not None:
        facts["grpc"] = host_port(callable_host(server.settings.grpc_host), server.grpc_port)
    for name, value in facts.items():
        console.print(Text.assemble((f"{name:<9}", "dim"), value))
    if takes_requests:
        console.print("\nTry:", style="dim")
        console.print(f'  errands send {url} "hello"')
        console.print(f"  {curl(url)}\n")
    console.print("Ctrl-C stops it.", style="dim")
    console.file.flush()


def curl(url: str) -> str:
    """A send with nothing but curl. The message's id is new each time: the same message is never worked on twice."""
    message = Message(message_id=_ID, role=Role.USER, parts=[Part(text="hello")])
    body = encode(SendMessageRequest(message=message)).decode().replace(_ID, "'$(date +%s)'")
    headers = f"-H 'Content-Type: application/json' -H 'A2A-Version: {v1_0.JSON.version}'"
    return f"curl -s {shlex.quote(url + '/message:send')} {headers} -d '{body}'"


def storage_of(server: A2AServer) -> str:
    """Where tasks live, and whether they stay there."""
    return server.storage if server.engine.durable else f"{server.storage} (tasks are lost when the server stops)"
