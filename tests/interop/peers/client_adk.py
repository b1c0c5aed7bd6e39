"""google-adk as a client: `python client_adk.py TALKS` prints what its user sees of agents.

TALKS is a JSON object: by name, the URL of an agent, a binding, "plain" or "streaming", and the sessions to hold.

An agent of ADK that stands for a remote one sends messages and shows what comes back. It does not list, get, cancel or
follow tasks.
"""

import asyncio
import base64
import json
import sys
import warnings
from typing import Any

import httpx
from a2a.client import ClientConfig, ClientFactory
from google.genai import types

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it is experimental, and says so on every import
    from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
    from google.adk.runners import InMemoryRunner

#: Sessions: what is said in each, one after the other.
SESSIONS: dict[str, list[str]] = {
    "send": ["echo hello", "echo again"],
    "stream": ["stream 3"],
    "input required": ["ask me", "Lisbon"],
    "direct message": ["direct"],
    "failure": ["fail"],
    "files": ["files"],
}
FILES = [b"\x00\xff", b"data"]


def said(text: str) -> types.Content:
    files = FILES if text == "files" else []
    blobs = [types.Part(inline_data=types.Blob(data=file, mime_type="text/plain")) for file in files]
    return types.Content(role="user", parts=[types.Part(text=text), *blobs])


def shown(part: types.Part) -> str:
    if part.inline_data is not None:
        return base64.b64encode(part.inline_data.data or b"").decode()
    if part.function_call is not None:
        return f"{part.function_call.name}: {json.dumps(part.function_call.args)}"
    return part.text or ""


async def turn(runner: InMemoryRunner, session: str, text: str) -> list[str]:
    """Return what the user sees, without thoughts."""
    seen: list[str] = []
    async for event in runner.run_async(user_id="user", session_id=session, new_message=said(text)):
        if event.error_message:
            seen.append(f"error: {event.error_message}")
        parts = event.content.parts or [] if event.content else []
        seen += [shown(part) for part in parts if not part.thought]
    return seen


async def talk(url: str, binding: str, mode: str, names: list[str]) -> dict[str, list[list[str]]]:
    """Return what the user sees in each session."""
    async with httpx.AsyncClient(timeout=60) as http:
        config: Any = ClientConfig(
            streaming=mode == "streaming", httpx_client=http, supported_protocol_bindings=[binding]
        )
        agent = RemoteA2aAgent(
            name="remote", agent_card=f"{url}/.well-known/agent-card.json", a2a_client_factory=ClientFactory(config)
        )
        runner = InMemoryRunner(agent=agent, app_name="interop")
        seen: dict[str, list[list[str]]] = {}
        for name in names:
            session = await runner.session_service.create_session(app_name="interop", user_id="user")
            seen[name] = [await turn(runner, session.id, text) for text in SESSIONS[name]]
        return seen


async def main(talks: dict[str, tuple[str, str, str, list[str]]]) -> None:
    for name, wanted in talks.items():
        print(json.dumps({"step": name, "outcome": await talk(*wanted)}), flush=True)


asyncio.run(main(json.loads(sys.argv[1])))
