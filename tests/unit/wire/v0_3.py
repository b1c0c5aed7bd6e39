"""Messages, tasks and dialects of A2A 0.3, for the tests of what is particular to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from errands.model.core import Message, Part, Role, Task, TaskState, TaskStatus
from errands.model.requests import AuthenticationInfo, TaskPushNotificationConfig
from errands.operations import OPERATIONS
from errands.wire.v0_3 import JSONRPC, REST, REST_PLAIN

SEND = OPERATIONS["SendMessage"]
MESSAGE = Message(message_id="m", role=Role.agent, parts=[Part(text="hi")])
TASK = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.canceled))
CONFIG = TaskPushNotificationConfig(
    url="http://hook", id="p", task_id="t", authentication=AuthenticationInfo(scheme="Bearer")
)

every_dialect = pytest.mark.parametrize("dialect", [JSONRPC, REST, REST_PLAIN], ids=["jsonrpc", "rest", "rest-plain"])
plain_dialects = pytest.mark.parametrize("dialect", [JSONRPC, REST_PLAIN], ids=["jsonrpc", "rest-plain"])


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def said(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"kind": "message", "messageId": "m", "role": "user", "parts": list(parts), **fields}


def text(words: str) -> dict[str, Any]:
    return {"kind": "text", "text": words}
