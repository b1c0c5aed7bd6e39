"""What runs an action: sessions, OpenAPI and MCP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.agents.support import Documents, Spoil, report, told

SESSION = {
    "create": {"method": "POST", "url": "https://example.com/sessions", "body": {"by": "{context.user.id}"}},
    "extract": {"id": "$.id"},
    "execute": {"method": "POST", "url": "https://example.com/{session.id}", "body": {"text": "{parameters.text}"}},
    "destroy": {"method": "DELETE", "url": "https://example.com/{session.id}"},
}


def running(**execute: Any) -> Spoil:
    def spoil(documents: Documents) -> None:
        documents["audit"]["actions"][0]["execute"] = execute

    return spoil


@pytest.mark.parametrize(
    "execute",
    [
        {"stateful_session": SESSION},
        {"openapi": {"url": "https://example.com/openapi.json"}},
        {"mcp": {"transport": "stdio", "command": "server", "env": {"ID": "{agent.name}"}, "tool_name": "note"}},
        {"mcp": {"transport": "sse", "url": "https://example.com/sse"}},
        {"mcp": {"transport": "http", "url": "http://localhost:8080/mcp", "headers": {"X-Agent": "{agent.name}"}}},
        {"stateless_http": {"method": "{parameters.text}", "url": "{parameters.text}"}},
        {"stateless_http": {"method": "GET", "url": "https://x.example", "headers": {"A": "Bearer {auth.github()}"}}},
        {"stateless_http": {"method": "GET", "url": "https://x.example", "headers": {"A": "Bearer {auth.oauth2}"}}},
    ],
    ids=str,
)
def test_a_backend_can_be_used(tmp_path: Path, execute: dict[str, Any]) -> None:
    assert told(report(tmp_path, running(**execute))) == []


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "a session that does nothing": (
        {"stateful_session": {"create": SESSION["create"]}},
        "stateful_session.execute: is missing; add execute: {method: POST, url: https://example.com/sessions}",
    ),
    "a session before it is there": (
        {"stateful_session": {**SESSION, "create": {"method": "GET", "url": "https://example.com/{session.id}"}}},
        ("stateful_session.create.url: uses {session.id}, but session has no id; declare it, or remove {session.id}"),
    ),
    "a key that is not extracted": (
        {"stateful_session": {**SESSION, "destroy": {"method": "DELETE", "url": "https://example.com/{session.idd}"}}},
        "stateful_session.destroy.url: uses {session.idd}, but session has no idd; did you mean id?",
    ),
    "the hooks of another page": (
        {"stateful_session": {**SESSION, "teardown": {}}},
        ("stateful_session.teardown: is unknown; remove it; known: create, destroy, execute, extract"),
    ),
    "OpenAPI without a document": (
        {"openapi": {}},
        "openapi.url: is missing; add url: https://example.com/openapi.json",
    ),
    "OpenAPI with a template": (
        {"openapi": {"url": "https://{settings.host}/openapi.json"}},
        "openapi.url: contains a brace, but is not a template; write the whole text",
    ),
    "MCP without a transport": (
        {"mcp": {"command": "server"}},
        "mcp.transport: is missing; add transport: stdio, sse or http",
    ),
    "MCP by an unknown transport": (
        {"mcp": {"transport": "pigeon"}},
        "mcp.transport: is 'pigeon'; write one of http, sse, stdio",
    ),
    "MCP without a command": (
        {"mcp": {"transport": "stdio"}},
        "mcp.command: is missing, and stdio needs it; add command",
    ),
    "MCP with a command it has no use for": (
        {"mcp": {"transport": "sse", "url": "https://example.com", "command": "server"}},
        "mcp.command: has no effect with sse; remove it, or change transport",
    ),
    "MCP with variables for no process": (
        {"mcp": {"transport": "http", "url": "https://example.com", "env": {"A": "b"}}},
        "mcp.env: has no effect with http; remove it, or change transport",
    ),
    "MCP with headers for no request": (
        {"mcp": {"transport": "stdio", "command": "server", "headers": {"A": "b"}}},
        "mcp.headers: has no effect with stdio; remove it, or change transport",
    ),
    "MCP with a template as a command": (
        {"mcp": {"transport": "stdio", "command": "{settings.command}"}},
        "mcp.command: contains a brace, but is not a template; write the whole text",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_its_message(mistake: str, tmp_path: Path) -> None:
    execute, expected = MISTAKES[mistake]
    assert told(report(tmp_path, running(**execute))) == [f"actions[0].execute.{expected}"]
