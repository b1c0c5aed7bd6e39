"""Bad input of any kind in PraisonAI's dialect gets an error of that dialect and changes nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from errands.wire.praisonai import CODES, METHODS
from tests.interaction.fuzzing import FUZZ, JSONRPC_CODES, Target, check_clean, wrecked

PARTS: list[dict[str, Any]] = [
    {"text": "hi", "metadata": {"k": 1}},
    {"url": "https://x.test", "mediaType": "text/plain", "filename": "f"},
    {"fileWithUri": "https://x.test", "name": "f"},
    {"file": {"bytes": "aGk=", "mimeType": "text/plain", "name": "f"}},
    {"raw": "aGk=", "media_type": "text/plain"},
    {"data": {"a": 1}},
]
MESSAGE = {"role": "user", "messageId": "m", "contextId": "c", "taskId": "no-such-task", "parts": PARTS}
CONFIGURATION = {"returnImmediately": True, "return_immediately": True, "acceptContentTypes": ["text/plain"]}


def request(method: str) -> dict[str, Any]:
    params = {"message": MESSAGE, "configuration": CONFIGURATION, "id": "t", "contextId": "c", "context_id": "c"}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


bodies = wrecked([request(method) for method in METHODS])


@given(body=bodies)
@FUZZ
def test_any_body_is_answered_or_refused_with_a_code_of_the_dialect(target: Target, body: bytes) -> None:
    before = target.tasks()
    answer = target.request("POST", "/a2a", content=body, headers={"content-type": "application/json"})
    check_clean(answer)
    assert answer.status_code in (200, 413)  # with more values than are read
    if answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.endswith("event: done\ndata: {}\n\n")
        return
    document = answer.json()
    assert (document["jsonrpc"], "id" in document) == ("2.0", True)
    if "error" in document:
        assert set(document["error"]) == {"code", "message"}
        assert document["error"]["code"] in JSONRPC_CODES | set(CODES.values())
        assert document["error"]["message"]
        assert target.tasks() == before
