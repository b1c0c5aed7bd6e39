"""A run as records, and short ways to evaluate over it."""

from __future__ import annotations

from typing import Any

from errands.policy import cel
from errands.policy.cel import NameScope, Session, Variables, run, scopes
from errands.policy.context_object import Context, replay
from errands.policy.records import (
    AnyRecord,
    CapabilityErrored,
    CapabilityFinished,
    CapabilityRestricted,
    InputArrived,
    ModelCalled,
    OutputGiven,
    Started,
)

NOW = "2026-05-20T03:45:00Z"
LATER = "2026-05-20T03:46:00Z"

STARTED = Started(
    at=NOW,
    agent="support",
    namespace="desk",
    user="ann",
    email="ann@example.com",
    model="gemini/gemini-2.5-flash",
    functions=("github_file_read_chunk", "zendesk_fetch_ticket", "slack_post"),
    delegations=("research_agent",),
)


def said(text: str, **parameters: Any) -> dict[str, Any]:
    return {"message": [{"mimeType": "text/plain", "text": text}], **parameters}


def finished(function: str, output: Any = None, **rest: Any) -> CapabilityFinished:
    return CapabilityFinished(at=LATER, call="1", function=function, output=output, **rest)


def errored(function: str, **rest: Any) -> CapabilityErrored:
    return CapabilityErrored(at=LATER, call="1", function=function, error="503", **rest)


def restricted(function: str, **rest: Any) -> CapabilityRestricted:
    return CapabilityRestricted(at=LATER, call="1", function=function, reason="no", **rest)


#: One message, three answers of the model, three calls, one answer.
RUN: list[AnyRecord] = [
    STARTED,
    InputArrived(at=NOW, values=said("help", ticket_id="T-1", repo_name="web", project_name="site")),
    ModelCalled(at=NOW, model="gemini/gemini-2.5-flash", prompt=4000, completion=500),
    finished("zendesk_fetch_ticket", {"title": "Broken"}, arguments={"id": "T-1"}),
    ModelCalled(at=NOW, model="gemini/gemini-2.5-flash", prompt=1000, completion=100),
    finished("github_file_read_chunk", "text", arguments={"path": "a"}),
    finished("research_agent", said("found"), arguments={"message": "look"}, task_id="child-1"),
    ModelCalled(at=NOW, model="gemini/gemini-2.5-flash", prompt=300, completion=30),
    OutputGiven(at=LATER, values=said("done", status="ok")),
]


def a_run() -> Context:
    return replay(RUN)


def value_of(source: str, scope: NameScope = scopes.BEFORE, context: Any = None, **values: Any) -> Any:
    """What an expression gives over the run above."""
    seen = a_run().plain() if context is None else context
    return run(cel.compile(scope, source), Variables(seen, **values), Session(NOW))
