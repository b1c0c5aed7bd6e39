"""`/metrics`: what a server counts, in the text format of Prometheus, for those who may know it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from errands import A2AServer, AccessRule, ApiKeyAuth, Caller, RequestEnvelope, TaskContext, Worker
from errands.engines.memory import MemoryEngine
from errands.errors import A2AError
from errands.runtime.figures import METRICS, MOST_MODELS, OTHER, Figures, Sample
from errands.runtime.middleware import A2AMiddleware
from errands.runtime.processes import ProcessSamples
from errands.server.metrics_page import exposition
from errands.testing import connect, http_client, serve
from tests.interaction.wire import message, rpc
from tests.unit.support import Agent, Gate
from tests.waiting import happens, until

pytestmark = pytest.mark.anyio


class Talks(Worker):
    """Does what it is asked to."""

    async def handle(self, ctx: TaskContext) -> None:
        match ctx.user_text:
            case "ask":
                await ctx.request_input("which?")
            case "fail":
                await ctx.fail("no")
            case "stream":
                await ctx.emit_text_artifact("x", artifact_id="a")
                await ctx.complete("done")
            case _:
                await ctx.complete("done")


def talking(**options: Any) -> A2AServer:
    return serve(Talks(), **{"metrics_public": True, **options})


def figures_of(server: A2AServer) -> list[Sample]:
    assert server.reporter is not None
    return server.reporter.exposed()[0].samples


Key = tuple[str, frozenset[tuple[str, str]]]


async def scraped(http: httpx.AsyncClient) -> dict[Key, float]:
    """The values at `/metrics`, as Prometheus reads them."""
    response = await http.get("/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def key(name: str, /, **labels: str) -> Key:
    return name, frozenset(labels.items())


def flattened(samples: list[Sample]) -> Iterator[tuple[Key, float]]:
    """Samples with the names and labels under which Prometheus knows them."""
    for sample in samples:
        metric = METRICS[sample.name]
        if metric.kind != "histogram":
            yield key(sample.name, **sample.labels), sample.value
            continue
        yield key(f"{sample.name}_count", **sample.labels), sample.value
        yield key(f"{sample.name}_sum", **sample.labels), sample.sum
        bounds = [*(f"{bound:g}" for bound in metric.bounds), "+Inf"]
        for bound, count in zip(bounds, [*sample.buckets, sample.value], strict=True):
            yield key(f"{sample.name}_bucket", **sample.labels, le=bound), count


async def test_prometheus_reads_every_sample_with_its_labels_kind_and_help() -> None:
    server = talking()
    async with connect(server) as client, http_client(server) as http:
        await client.send("hello")
        expected = dict(flattened(figures_of(server)))
        text = (await http.get("/metrics")).text
        changing = {"errands_process_cpu_seconds_total", "errands_resident_bytes"}
        found = await scraped(http)
        assert found.keys() == expected.keys()
        assert {name: value for name, value in found.items() if name[0] not in changing} == {
            name: value for name, value in expected.items() if name[0] not in changing
        }
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for metric in METRICS.values():
        family = families.get(metric.name.removesuffix("_total"))
        if family is not None:
            assert (family.type, family.documentation) == (metric.kind, metric.help)


# What is counted


async def sent(http: httpx.AsyncClient, text: str, **fields: Any) -> Any:
    response = await http.post("/message:send", json={"message": message(text, **fields)})
    return response.json()["task"]


def requests_of(found: dict[Key, float]) -> dict[tuple[str, str, str], float]:
    """The requests by operation, binding and outcome."""
    rows = ((dict(labels), value) for (name, labels), value in found.items() if name == "errands_requests_total")
    return {(labels["operation"], labels["binding"], labels["outcome"]): value for labels, value in rows}


async def test_requests_are_counted_by_operation_binding_and_outcome() -> None:
    server = talking()
    async with server, http_client(server) as http:
        task = await sent(http, "hello")
        await http.post("/", json=rpc("SendMessage", {"message": message("hello")}))
        await http.get(f"/tasks/{task['id']}")
        await http.get("/tasks/unknown")
        await http.post("/", json=rpc("GetTask", {"id": "unknown"}))
        await http.post("/", json=rpc("tasks/get", {"id": task["id"]}))
        await http.post("/a2a", json=rpc("message/send", {"message": {"role": "user", "parts": [{"text": "x"}]}}))
        found = await scraped(http)
    assert requests_of(found) == {
        ("SendMessage", "http", "ok"): 1,
        ("SendMessage", "jsonrpc", "ok"): 1,
        ("SendMessage", "praisonai", "ok"): 1,
        ("GetTask", "http", "ok"): 1,
        ("GetTask", "jsonrpc", "ok"): 1,
        ("GetTask", "http", "TASK_NOT_FOUND"): 1,
        ("GetTask", "jsonrpc", "TASK_NOT_FOUND"): 1,
    }
    assert found[key("errands_request_seconds_count", operation="SendMessage")] == 3
    assert found[key("errands_request_seconds_count", operation="GetTask")] == 2


async def test_requests_that_are_refused_before_they_are_understood_have_an_unknown_operation() -> None:
    server = talking(caller_rate=0.001, caller_burst=3)
    async with server, http_client(server) as http:
        await http.post("/", json=rpc("errands_requests_total{evil=1}", {}))
        await http.post("/", content="{", headers={"Content-Type": "application/json"})
        await http.post("/", json=rpc("GetTask", {"id": 5}))
        await http.post("/", json=rpc("GetTask", {"id": "x"}))
        found = requests_of(await scraped(http))
    assert found == {
        ("unknown", "jsonrpc", "METHOD_NOT_FOUND"): 1,
        ("unknown", "jsonrpc", "INVALID_JSON"): 1,
        ("GetTask", "jsonrpc", "INVALID_PARAMS"): 1,
        ("unknown", "jsonrpc", "TOO_MANY_REQUESTS"): 1,
    }


def test_a_reason_that_a_program_invents_counts_as_other() -> None:
    class StrangeError(A2AError, reason="STRANGE"):
        pass

    figures = Figures()
    figures.refused("GetTask", "http", StrangeError())
    [refused] = [sample for sample in figures.samples() if sample.name == "errands_requests_total"]
    assert refused.labels == {"operation": "GetTask", "binding": "http", "outcome": OTHER}


async def test_states_attempts_and_turns_are_counted(storage: str) -> None:
    server = talking(storage=storage)
    async with server, http_client(server) as http:
        await sent(http, "hello")
        await sent(http, "fail")
        asked = await sent(http, "ask")
        await sent(http, "hello", taskId=asked["id"])
        # A task is shown before its turn has come to its end.
        turns = key("errands_turn_seconds_count", agent="Test agent")
        await until(lambda: dict(flattened(figures_of(server))).get(turns) == 4)
        found = await scraped(http)
    states = {dict(labels)["state"]: value for (name, labels), value in found.items() if name == "errands_tasks_total"}
    assert {state: count for state, count in states.items() if count} == {
        "submitted": 4,
        "working": 4,
        "completed": 2,
        "failed": 1,
        "input-required": 1,
    }
    attempts = {"new": 4.0, "expired": 0.0, "given back": 0.0}
    assert {cause: found[key("errands_attempts_total", cause=cause)] for cause in attempts} == attempts
    assert found[key("errands_leases_lost_total")] == 0
    if storage != "memory":
        assert found[key("errands_commit_changes_sum")] >= found[key("errands_commit_changes_count")] >= 8
        assert found[key("errands_commit_seconds_sum")] > 0


async def test_what_runs_and_who_waits_is_seen_at_the_moment() -> None:
    gate = Gate()

    async def wait(ctx: TaskContext) -> None:
        await gate()
        await ctx.complete("done")

    server = serve(Agent(wait), metrics_public=True, max_concurrent_tasks=7)
    async with connect(server) as client, http_client(server) as http:
        stream = client.stream("hello")
        await anext(stream)
        await happens(gate.reached)
        found = await scraped(http)
        names = ("errands_turns_running", "errands_turns_limit", "errands_subscribers")
        assert [found[key(name)] for name in names] == [1, 7, 1]
        gate.open()
        async for _ in stream:
            pass
        await until(lambda: not server.pool.running)
        found = await scraped(http)
        assert [found[key(name)] for name in names] == [0, 7, 0]


async def test_without_a_limit_none_is_shown_and_processes_that_run_no_turns_have_none(storage: str) -> None:
    for options in ({"settings": None}, {"role": "api"}):
        if options.get("role") and storage == "memory":
            continue
        server = talking(storage=storage, **options)
        if "role" not in options:
            server.settings.max_concurrent_tasks = None
        async with server, http_client(server) as http:
            assert key("errands_turns_limit") not in await scraped(http)


def test_only_so_many_models_are_counted_by_name() -> None:
    figures = Figures()
    for number in range(2 * MOST_MODELS):
        figures.used_model(f"model {number}", 2, 1)
    figures.used_model("model 0", 2, 1)
    tokens = {
        (sample.labels["model"], sample.labels["kind"]): sample.value
        for sample in figures.samples()
        if sample.name == "errands_model_tokens_total"
    }
    assert len(tokens) == 2 * (MOST_MODELS + 1)
    assert (tokens["model 0", "prompt"], tokens["model 0", "completion"]) == (4, 2)
    assert tokens[OTHER, "prompt"] == 2 * MOST_MODELS


def test_labels_may_have_any_characters() -> None:
    hostile = 'a"b\\c\nd{}=,é\udc80'
    sample = Sample(
        "errands_turn_seconds", {"agent": hostile}, 0, 0.0, (0,) * len(METRICS["errands_turn_seconds"].bounds)
    )
    text = b"".join(exposition([ProcessSamples({}, [sample])])).decode()
    [family] = text_string_to_metric_families(text)
    assert {one.labels["agent"] for one in family.samples} == {hostile.replace("\udc80", "?")}


def test_a_process_of_another_release_does_not_make_the_page_fail() -> None:
    here = Sample("errands_turn_seconds", {"agent": "a"}, 0, 0.0, (0,) * len(METRICS["errands_turn_seconds"].bounds))
    there = [Sample("errands_turn_seconds", {"agent": "a"}, 1, 1.0, (1,)), Sample("errands_unheard_of", value=1)]
    text = b"".join(exposition([ProcessSamples({"process": "1"}, [here]), ProcessSamples({"process": "2"}, there)]))
    [family] = text_string_to_metric_families(text.decode())
    assert {one.labels["process"] for one in family.samples} == {"1"}


async def test_switched_off_nothing_is_counted_and_there_is_no_page() -> None:
    server = talking(metrics=False)
    async with server, http_client(server) as http:
        await sent(http, "hello")
        response = await http.get("/metrics")
        assert (response.status_code, "ERRANDS_METRICS=true" in response.text) == (404, True)
        assert (server.reporter, server.engine.counts, await server.engine.processes()) == (None, None, [])


async def test_an_engine_counts_no_more_when_it_serves_again_without_metrics() -> None:
    engine = MemoryEngine()
    for metrics in (True, False):
        async with talking(metrics=metrics, storage=engine):
            assert (engine.counts is not None) == metrics


# Who may read them


async def status(server: A2AServer, **headers: str) -> int:
    async with http_client(server) as http:
        return (await http.get("/metrics", headers=headers)).status_code


async def test_where_nobody_authenticates_only_this_machine_reads_them() -> None:
    async with talking(metrics_public=False) as server, http_client(server) as http:
        response = await http.get("/metrics")
        assert (response.status_code, "ERRANDS_METRICS_PUBLIC=true" in response.text) == (404, True)
    for host, expected in (("127.0.0.1", 200), ("0.0.0.0", 404)):
        server = talking(metrics_public=False)
        server.listen_at(host, 8000)
        async with server:
            assert await status(server, Host="localhost:8000") == expected


async def test_a_proxy_on_this_machine_does_not_show_them_to_the_world() -> None:
    for options, headers in (
        ({"public_url": "http://agent.test"}, {}),
        ({"trust_forwarded": True}, {}),
        ({}, {"X-Forwarded-For": "203.0.113.7"}),
        ({}, {"Via": "1.1 proxy"}),
    ):
        server = talking(metrics_public=False, **options)
        server.listen_at("127.0.0.1", 8000)
        async with server:
            assert await status(server, Host="localhost:8000", **headers) == 404


async def test_a_process_that_takes_no_requests_shows_them_only_if_everyone_may_read_them(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    for options, public, expected in (({}, False, 404), ({}, True, 200), ({"auth": [ApiKeyAuth(KEYS)]}, False, 404)):
        server = talking(storage=store, role="worker", metrics_public=public, **options)
        async with server:
            assert await status(server, **{"X-API-Key": "operator"}) == expected


KEYS = {
    "alice": Caller(owner="alice"),
    "auditor": Caller(owner="audrey", tenant="acme", scopes=frozenset({"audit"})),
    "operator": Caller(owner="oscar", tenant="ops", scopes=frozenset({"operate"})),
}
RULES = [
    AccessRule(name="auditors", when="'audit' in caller.scopes", grant="read"),
    AccessRule(name="operators", when="'operate' in caller.scopes", grant="read", reach="agent"),
]


@pytest.mark.parametrize(("name", "expected"), [("", 401), ("wrong", 401), ("alice", 403), ("auditor", 403)])
async def test_with_authentication_only_operators_read_them(name: str, expected: int) -> None:
    server = talking(metrics_public=False, auth=[ApiKeyAuth(KEYS)], access_rules=RULES)
    # Nor does it help to come from this machine: requests through a proxy do, too.
    server.listen_at("127.0.0.1", 8000)
    server.settings.public_url = "http://agent.test"
    async with server:
        assert await status(server, **({"X-API-Key": name} if name else {})) == expected
        assert await status(server, **{"X-API-Key": "operator"}) == 200


async def test_what_middleware_lets_through_is_no_operator() -> None:
    class Named(A2AMiddleware):
        async def before_dispatch(self, envelope: RequestEnvelope, request: Any) -> None:
            envelope.owner = "alice"

    async with talking(metrics_public=False, middlewares=[Named()]) as server:
        assert await status(server) == 403
    async with talking(middlewares=[Named()]) as server:
        assert await status(server) == 200
