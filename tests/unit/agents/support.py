"""A valid agent with a tool and another agent, ways to spoil them, and what is then said."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from errands.agents.manifests import Manifests, Report, examine

Json = dict[str, Any]
#: Everything that `written` puts into one file, by name.
Documents = dict[str, Json]

_AGENT = "commonagents.info/v1beta2/agent"
_TOOL = "commonagents.info/v1beta2/tool"

VALID: Documents = {
    "agent": {
        "kind": _AGENT,
        "namespace": "shop",
        "name": "support",
        "description": "Helps customers.",
        "prompt": "You help {context.user.email}. It is {now}, in version {runtime.version}.",
        "model": "openai/gpt-4o-mini",
        "mount": "task",
        "limits": {"max_turns": 5, "max_age": "1h30m"},
        "parameters": {"type": "object", "properties": {"region": {"type": "string", "default": "eu"}}},
        "capabilities": {
            "github-file": {
                "include": ["read-chunk", "write"],
                "bindings": {"repo": "context.input[0].region", "owner": "'us'"},
                "before_first": [{"assert": "context.user.id != ''", "error_message": "Who is {context.user.id}?"}],
                "before": [
                    {"match": "write", "assert": "size(input.path) < 100 || review('boss@example.com')"},
                    {"invoke": "audit:note", "bindings": {"text": "input.path"}, "on_fail": "continue"},
                ],
                "after": [{"transform": "output.put('seen', now)", "condition": "has(output.seen)"}],
            },
            "analyst": {"bindings": {"customer": "context.user.id"}},
        },
        "model_capabilities": ["web-search"],
        "guardrails": {
            "before": [{"assert": "size(input.message) > 0", "error_message": "Say something, {context.user.id}."}],
            "after": [{"assert": "size(output.message) > 0", "on_fail": "continue"}],
        },
        "exposes": {"reads": "context.capabilities.github_file_read_chunk.count_successful"},
    },
    "tool": {
        "kind": _TOOL,
        "namespace": "shop",
        "name": "github-file",
        "description": "Files of a repository.",
        "settings": {"properties": {"github.token": {"type": "string", "format": "password"}}},
        "parameters": {
            "properties": {"repo": {"type": "string", "require_binding": True}, "owner": {"type": "string"}}
        },
        "stateless_http": {"headers": {"Authorization": "Bearer {settings.github.token}"}},
        "actions": [
            {
                "name": "read-chunk",
                "description": "Reads a part of a file.",
                "parameters": {
                    "properties": {"path": {"type": "string"}, "lines": {"type": "integer", "default": 100}}
                },
                "execute": {
                    "stateless_http": {
                        "method": "GET",
                        "url": "https://example.com/{parameters.owner}/{parameters.repo}/{parameters.path}",
                        "response_path": "$.content",
                    }
                },
            },
            {
                "name": "write",
                "description": "Writes a file.",
                "parameters": {"properties": {"path": {"type": "string"}}},
                "execute": {"cel": {"expression": "{'written': mount.write(input.path, 'x')}"}},
            },
        ],
    },
    "audit": {
        "kind": _TOOL,
        "namespace": "shop",
        "name": "audit",
        "description": "Keeps notes.",
        "actions": [
            {
                "name": "note",
                "description": "Keeps a note.",
                "parameters": {"properties": {"text": {"type": "string"}}},
                "execute": {"cel": {"expression": "{'kept': input.text}"}},
            }
        ],
    },
    "analyst": {
        "kind": _AGENT,
        "namespace": "shop",
        "name": "analyst",
        "description": "Thinks.",
        "prompt": "Think.",
        "parameters": {"properties": {"customer": {"type": "string", "require_binding": True}}},
    },
    "mount": {"name": "files", "local": {"path": "./files"}},
}

Spoil = Callable[[Documents], object]


def spoiled(spoil: Spoil) -> Documents:
    documents = copy.deepcopy(VALID)
    spoil(documents)
    return documents


def written(folder: Path, documents: Documents) -> Path:
    file = folder / "bundle.yaml"
    file.write_text(yaml.safe_dump_all(documents.values(), sort_keys=False))
    return file


def report(folder: Path, spoil: Spoil) -> Report:
    return examine(written(folder, spoiled(spoil)))


def loaded(folder: Path, spoil: Spoil = lambda documents: None) -> Manifests:
    found = report(folder, spoil)
    assert found.manifests is not None, [str(finding) for finding in found.findings]
    return found.manifests


def told(found: Report, severity: str = "error") -> list[str]:
    """Each finding without its place in the file."""
    return [
        f"{finding.field}: {finding.problem}; {finding.remedy}"
        for finding in found.findings
        if finding.severity == severity
    ]


def put(document: str, *path: str | int, value: Any) -> Spoil:
    """Writes something else somewhere."""

    def spoil(documents: Documents) -> None:
        holder: Any = documents[document]
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = value

    return spoil


def drop(document: str, *path: str | int) -> Spoil:
    """Leaves something out."""

    def spoil(documents: Documents) -> None:
        holder: Any = documents
        for step in (document, *path)[:-1]:
            holder = holder[step]
        del holder[(document, *path)[-1]]

    return spoil


def text_report(folder: Path, text: str) -> Report:
    file = folder / "agent.yaml"
    file.write_text(text)
    return examine(file)


def assert_told(folder: Path, spoil: Spoil, expected: str) -> None:
    """There is one error, and it is the expected one, or begins as what follows STARTS."""
    field, starts, words = expected.partition("STARTS ")
    found = told(report(folder, spoil))
    if starts:
        assert [message.startswith(field + words) for message in found] == [True], found
    else:
        assert found == [expected]
