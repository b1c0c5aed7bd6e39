"""What official SDKs sent and answered, as `scripts/record_golden.py` wrote it down, and how ours compares with it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from errands.model.base import encode
from errands.operations import Operation
from errands.wire import v1_0
from errands.wire.dialect import Dialect
from errands.wire.sse import SSEParser
from errands.wire.v0_3 import JSONRPC, REST

FOLDER = Path(__file__).parents[2] / "golden"
#: The dialect of each family of recordings. The longer names first: one begins with the other.
FAMILIES: dict[str, Dialect] = {
    "0.3.26-jsonrpc": JSONRPC,
    "0.3.26-rest": REST,
    "1.3.0-jsonrpc-0.3": JSONRPC,
    "1.3.0-rest-0.3": REST,
    "1.3.0-jsonrpc": v1_0.JSON,
    "1.3.0-rest": v1_0.JSON,
}
#: Where any JSON may stand, which nobody touches.
_FREE = frozenset({"metadata", "data", "header", "params"})


class Asked(NamedTuple):
    """A request as the dialect sees it."""

    operation: Operation
    #: Body or `params`; None when everything is in path and query.
    body: Any
    fields: dict[str, str]


class Recording(NamedTuple):
    family: str
    name: str
    request: dict[str, Any]
    response: dict[str, Any]

    @property
    def dialect(self) -> Dialect:
        return FAMILIES[self.family]

    @property
    def is_jsonrpc(self) -> bool:
        return "jsonrpc" in self.family

    @property
    def is_stream(self) -> bool:
        return "event-stream" in self.response["content-type"]

    @property
    def is_error(self) -> bool:
        body = self.response["body"]
        return self.response["status"] >= 400 or (self.is_jsonrpc and isinstance(body, dict) and "error" in body)

    def asked(self) -> Asked:
        body = self.request["body"]
        if self.is_jsonrpc:
            return Asked(self.dialect.methods[body["method"]], body.get("params", {}), {})
        path, query = urlsplit(self.request["path"])[2:4]
        for route in self.dialect.routes:
            pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/:]+)", re.escape(route.path))
            found = re.fullmatch(pattern, path)
            if found and self.request["method"] in route.methods:
                return Asked(route.operation, body, {**dict(parse_qsl(query)), **found.groupdict()})
        raise AssertionError(f"no route for {self.request['method']} {path}")

    def answer(self) -> Any:
        """The answer's content without an envelope; an SDK leaves a result of null out."""
        body = self.response["body"]
        return body.get("result") if self.is_jsonrpc else body

    def events(self) -> list[Any]:
        """The contents of a stream's events."""
        events = [json.loads(event.data) for event in SSEParser().feed(self.response["body"].encode())]
        return [event["result"] for event in events] if self.is_jsonrpc else events

    def read_request(self) -> Any:
        operation, body, fields = self.asked()
        if body is None and self.request["method"] != "POST":
            return self.dialect.read_query(operation, fields)
        return self.dialect.read_request(operation, encode({} if body is None else body), fields)


def _load(path: Path) -> Recording:
    family = next(family for family in FAMILIES if path.stem.startswith(family + "-"))
    found = json.loads(path.read_text(encoding="utf-8"))
    return Recording(family, path.stem.removeprefix(family + "-"), found["request"], found["response"])


RECORDINGS = [_load(path) for path in sorted(FOLDER.glob("*.json"))]


def normal(value: Any) -> Any:
    """JSON without the differences that say nothing.

    Allowed are: empty, false and null fields written or left out; snake_case keys; the proto's name `request` for
    `message`; the flag `final` of a pause, which a2a-sdk 1.x does not set; parameters that say the default.
    """
    if isinstance(value, list):
        return [normal(item) for item in value]
    if not isinstance(value, dict):
        return value
    result: dict[str, Any] = {}
    for key, item in value.items():
        name = "message" if key == "request" else re.sub(r"_(\w)", lambda found: found[1].upper(), key)
        plain = item if name in _FREE else normal(item)
        if plain not in (None, False, "", [], {}):
            result[name] = plain
    if str(result.get("status", {})).lower().replace("_", "-").find("input-required") >= 0:
        result.pop("final", None)
    return result
