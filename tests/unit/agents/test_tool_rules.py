"""Every rule about tools and mounts has its message, and so has what errands does not have yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.agents.support import Spoil, assert_told, drop, put

CAPABILITY = ("agent", "capabilities", "github-file")
ACTION = ("tool", "actions", 0)
HTTP = ("tool", "actions", 0, "execute", "stateless_http")

#: What is done to the valid manifests, and the one error that is told.
RULES: dict[str, tuple[Spoil, str]] = {
    # Tools
    "a setting below another": (
        put("tool", "settings", "properties", "github", value={"type": "string"}),
        ("settings.properties.github.token: is below github, which is itself a setting; rename one of the two"),
    ),
    "a tool without actions": (
        put("audit", "actions", value=[]),
        "actions: is missing or empty; add at least one action, or either openapi or mcp",
    ),
    "an action without a backend": (
        put(*ACTION, "execute", value={}),
        "actions[0].execute: has no backend; write exactly one of cel, stateless_http, stateful_session, openapi, mcp",
    ),
    "an action with two backends": (
        put(*ACTION, "execute", "cel", value={"expression": "1"}),
        (
            "actions[0].execute: has cel and stateless_http; write exactly one of cel, stateless_http, "
            "stateful_session, openapi, mcp"
        ),
    ),
    "two actions of one name": (
        lambda documents: documents.update(
            mount={**documents["audit"], "name": "log", "actions": documents["audit"]["actions"] * 2}
        ),
        "actions[1].name: is 'note', the same function as the action 'note'; give it another name",
    ),
    "an unknown method": (
        put(*HTTP, "method", value="get"),
        "actions[0].execute.stateless_http.method: is 'get'; write one of GET, POST, PUT, PATCH, DELETE",
    ),
    "a request without an address": (
        drop(*HTTP, "url"),
        "actions[0].execute.stateless_http.url: is missing; add url: https://example.com/orders/{parameters.id}",
    ),
    "an address that is none": (
        put(*HTTP, "url", value="ftp://example.com"),
        (
            "actions[0].execute.stateless_http.url: is 'ftp://example.com'; write an address such as "
            "https://example.com/api"
        ),
    ),
    "an address of another scheme, with a value in it": (
        put(*HTTP, "url", value="ftp://example.com/{parameters.path}"),
        "actions[0].execute.stateless_http.url: STARTS is 'ftp://example.com/{parameters.path}'; write an address",
    ),
    "an address with a password": (
        put(*HTTP, "url", value="https://user:{settings.github.token}@example.com"),
        "actions[0].execute.stateless_http.url: contains a user name or a password; put credentials into headers",
    ),
    "a header of the connection": (
        put(*HTTP, "headers", value={"Host": "example.com"}),
        (
            "actions[0].execute.stateless_http.headers.Host: is a header that a tool cannot send; remove it, "
            "or use another name"
        ),
    ),
    "a header whose name is none": (
        put(*HTTP, "headers", value={"X Y": "1"}),
        (
            "actions[0].execute.stateless_http.headers.X Y: is a header that a tool cannot send; remove it, "
            "or use another name"
        ),
    ),
    "a header of two lines": (
        put(*HTTP, "headers", value={"X-Note": "a\nHost: {settings.github.token}"}),
        (
            "actions[0].execute.stateless_http.headers.X-Note: contains line breaks or control characters; "
            "write it on one line"
        ),
    ),
    "a header of the connection to an MCP server": (
        put(
            "audit",
            "actions",
            0,
            "execute",
            value={"mcp": {"transport": "http", "url": "https://a.example", "headers": {"transfer-encoding": "x"}}},
        ),
        "actions[0].execute.mcp.headers.transfer-encoding: STARTS is a header that a tool cannot send",
    ),
    "a JSONPath that ends too early": (
        put(*HTTP, "response_path", value="$.data."),
        "actions[0].execute.stateless_http.response_path: STARTS is '$.data.', not a JSONPath (expected a shorthand",
    ),
    "a JSONPath that is none": (
        put(*HTTP, "response_path", value="data.id"),
        (
            "actions[0].execute.stateless_http.response_path: is 'data.id', not a JSONPath; begin with "
            "$, such as $.data.id"
        ),
    ),
    # Mounts
    "a mount without a backend": (
        put("mount", "local", value=None),
        ": has no backend; write exactly one of local, gcs, s3",
    ),
    "a mount with two backends": (
        put("mount", "gcs", value={"bucket": "b"}),
        ": has the backends local and gcs; write exactly one of local, gcs, s3",
    ),
    "an unknown token": (
        put("mount", "path_prefixes", value={"task": "/{task}/{user}/"}),
        "path_prefixes.task: has the token '{user}'; use {namespace}, {agent} and {task}",
    ),
    "a prefix that leads out": (
        put("mount", "path_prefixes", value={"task": "/{task}/../"}),
        "path_prefixes.task: leads out of the mount with ..; write the path without ..",
    ),
    # Not yet
    "events of a tool": (
        put("tool", "events", value=[{"name": "pushed"}]),
        (
            "events: cannot be used: tool events are not in this version of errands; remove it, or run this "
            "manifest elsewhere"
        ),
    ),
    "a timeout of events": (
        put(*CAPABILITY, "event_timeout", value="3h"),
        (
            "capabilities.github-file.event_timeout: cannot be used: tool events are not in this version of errands; "
            "remove it, or run this manifest elsewhere"
        ),
    ),
    "a job of Kubernetes": (
        put(*ACTION, "execute", "kubernetes_job", value={"namespace": "x"}),
        (
            "actions[0].execute.kubernetes_job: cannot be used: kubernetes_job is not in this "
            "version of errands; remove it, or run this manifest elsewhere"
        ),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_its_message(rule: str, tmp_path: Path) -> None:
    assert_told(tmp_path, *RULES[rule])
