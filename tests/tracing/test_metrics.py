"""The metrics of a server in OpenTelemetry, under the names of the table."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from errands import TaskContext, Worker
from errands.runtime.figures import METRICS
from errands.testing import connect, serve

pytestmark = pytest.mark.anyio

_READER = InMemoryMetricReader()


@pytest.fixture(scope="module", autouse=True)
def meters() -> None:
    """A meter provider, of which a process has one for as long as it lives."""
    metrics.set_meter_provider(MeterProvider([_READER]))


class Echo(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete(f"Echo: {ctx.user_text}")


def exported() -> dict[str, list[Any]]:
    """What an exporter finds now, by name."""
    data = _READER.get_metrics_data()
    if data is None:
        return {}
    found = [one for part in data.resource_metrics for scope in part.scope_metrics for one in scope.metrics]
    return {one.name: list(one.data.data_points) for one in found}


async def test_everything_that_is_counted_is_exported() -> None:
    async with connect(serve(Echo(), storage="memory", otel=True)) as client:
        for text in ("one", "two", "three"):
            await client.send(text)
        # Exporters ask in threads of their own.
        found = await asyncio.to_thread(exported)
    [requests] = found["errands_requests_total"]
    assert (requests.value, requests.attributes["operation"], requests.attributes["outcome"]) == (
        3,
        "SendMessage",
        "ok",
    )
    [turns] = found["errands_turn_seconds_count"]
    assert (turns.value, turns.attributes) == (3, {"agent": "Test agent"})
    assert found["errands_turn_seconds_sum"][0].value > 0
    buckets = {point.attributes["le"]: point.value for point in found["errands_turn_seconds_bucket"]}
    assert list(buckets)[-1] == "+Inf"
    assert list(buckets.values())[-1] == 3
    assert sorted(buckets.values()) == list(buckets.values())
    plain = {name for name in found if name in METRICS}
    assert plain >= {"errands_turns_running", "errands_tasks_total", "errands_queue_age_seconds", "errands_info"}
    assert {METRICS[name].kind for name in plain} == {"counter", "gauge"}
    assert {METRICS[name.rpartition("_")[0]].kind for name in found.keys() - plain} == {"histogram"}


async def test_servers_of_one_process_are_told_apart_and_nothing_is_left_of_those_that_stopped() -> None:
    async with (
        serve(Echo(), storage="memory", otel=True),
        connect(serve(Echo(), storage="memory", otel=True)) as client,
    ):
        await client.send("hi")
        found = await asyncio.to_thread(exported)
        assert all("agent" in point.attributes for points in found.values() for point in points)
    assert await asyncio.to_thread(exported) == {}


async def test_a_server_that_counts_nothing_exports_nothing() -> None:
    async with connect(serve(Echo(), storage="memory", otel=True, metrics=False)) as client:
        await client.send("hi")
        assert await asyncio.to_thread(exported) == {}
