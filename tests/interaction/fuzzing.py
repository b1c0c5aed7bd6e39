"""What the fuzz tests send, and the agent that they send it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from errands import A2AServer, TaskContext, Worker
from errands.model.log import ListQuery
from errands.testing import http_client, serve
from errands.wire.status import STATUS
from tests.soak import examples
from tests.unit.wire.strategies import paths, replaced

JSONRPC_CODES = {status.jsonrpc for status in STATUS.values()} - {STATUS["INTERNAL"].jsonrpc}
FUZZ = settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def wrecked(documents: Sequence[Any]) -> st.SearchStrategy[bytes]:
    """These documents malformed, truncated, huge, nested deeply, with values of wrong types; and some as they are."""
    places = [(document, path) for document in documents for path in paths(document)]
    wholes = [json.dumps(document).encode() for document in documents]
    mutations = st.builds(
        lambda place, new, drop: json.dumps(replaced(place[0], place[1], new, drop=drop)).encode(),
        st.sampled_from(places),
        json_values | huge_values,
        st.booleans(),
    )
    truncations = st.builds(lambda whole, end: whole[: end % len(whole)], st.sampled_from(wholes), st.integers(0))
    nested = st.builds(
        lambda whole, depth: whole.replace(b'{"a": 1}', b"[" * depth + b"1" + b"]" * depth),
        st.sampled_from(wholes),
        st.integers(1, 2000),
    )
    return st.one_of(
        mutations, truncations, nested, deep, st.binary(max_size=200), json_values.map(json.dumps).map(str.encode)
    )


openings = st.sampled_from([b"[", b'{"params":'])
deep = st.builds(lambda opening, depth: opening * depth, openings, st.integers(1, 200_000))
huge_values = st.sampled_from([10**400, -(10**30), 1e308, float("inf"), "x" * 100_000, ["x"] * 10_000])


class Quiet(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text == "wait":
            await ctx.request_input("For what?")
        else:
            await ctx.complete("done")


class Target:
    """A server in this process that is driven from synchronous tests, with a task that waits."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.server: A2AServer = serve(Quiet())
        self.runner.run(self.server.start())
        self.client = http_client(self.server)
        message = {"messageId": "w", "role": "ROLE_USER", "parts": [{"text": "wait"}]}
        self.waiting: str = self.request("POST", "/message:send", json={"message": message}).json()["task"]["id"]

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.runner.run(self.client.request(method, path, **options))

    def tasks(self) -> tuple[int, int]:
        """What no refused request may change: how many tasks there are, and the version of the one that waits."""
        page = self.runner.run(self.server.engine.list(ListQuery(scope=self.server.scope())))
        stored = self.runner.run(self.server.engine.load(self.waiting, self.server.scope()))
        return page.total_size, stored.version

    def close(self) -> None:
        self.runner.run(self.client.aclose())
        self.runner.run(self.server.stop())
        self.runner.close()


def check_clean(answer: httpx.Response) -> None:
    assert "Traceback" not in answer.text
    assert 'File "' not in answer.text
