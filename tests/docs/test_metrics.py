"""The table of metrics is documented whole; dashboard and alerts ask for what is measured, with labels that it has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import promql_parser
import pytest
import yaml

from errands.model.core import TaskState
from errands.operations import OPERATIONS
from errands.runtime.figures import METRICS, Metric
from errands.wire.status import STATUS
from tests.docs.pages import ROOT, code, table

RULES = yaml.safe_load((ROOT / "deploy/prometheus/errands.rules.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((ROOT / "deploy/grafana/errands.json").read_text())
#: Metrics without a place on the dashboard, each with the reason.
NOT_SHOWN = {"errands_traces_left_out_total": "only servers with otel have it, and what is left out is no trouble"}
#: What Prometheus adds to every sample, and processes that share a port.
ADDED = {"job", "instance", "process"}
VALUES = {
    "outcome": {"ok", *STATUS, "delivered", "failed", "dead", "refused"},
    "operation": set(OPERATIONS),
    "state": {state.short for state in TaskState},
    "cause": {"new", "expired", "given back"},
}


class Query(NamedTuple):
    where: str
    expression: str


def queries() -> Iterator[Query]:
    for rule in RULES:
        yield Query(rule["alert"], rule["expr"])
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield Query(f"{panel['title']} {target['refId']}", target["expr"])


QUERIES = list(queries())


def parsed(query: Query) -> Any:
    # What Grafana fills in.
    filled = query.expression.replace("$__rate_interval", "1m").replace("$job", ".*")
    return promql_parser.parse(filled)


def nodes(expression: Any) -> Iterator[Any]:
    """Every part of a query."""
    yield expression
    for name in ("expr", "lhs", "rhs", "vector_selector", "vs"):
        if (inner := getattr(expression, name, None)) is not None:
            yield from nodes(inner)
    for argument in getattr(expression, "args", None) or ():
        yield from nodes(argument)


def metric_of(series: str | None) -> Metric:
    """The metric that a time series belongs to: a histogram has three."""
    assert series is not None
    if series in METRICS:
        assert METRICS[series].kind != "histogram", f"{series} is a histogram"
        return METRICS[series]
    name = re.sub("_(bucket|sum|count)$", "", series)
    assert METRICS[name].kind == "histogram"
    return METRICS[name]


def selectors(query: Query) -> list[Any]:
    return [node for node in nodes(parsed(query)) if isinstance(node, promql_parser.VectorSelector)]


def where(query: Query) -> str:
    return query.where


@pytest.mark.parametrize("query", QUERIES, ids=where)
def test_a_query_asks_for_metrics_and_labels_that_there_are(query: Query) -> None:
    found = selectors(query)
    assert found
    labels = set(ADDED)
    for selector in found:
        metric = metric_of(selector.name)
        labels |= {*metric.labels, *({"le"} if metric.kind == "histogram" else ())}
        for matcher in selector.matchers.matchers:
            assert matcher.name in {*metric.labels, *ADDED}
            if matcher.name in VALUES:
                assert set(matcher.value.split("|")) <= VALUES[matcher.name]
    grouped = {
        label
        for node in nodes(parsed(query))
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None
        for label in node.modifier.labels
    }
    assert grouped <= labels


@pytest.mark.parametrize("query", QUERIES, ids=where)
def test_only_counters_and_histograms_have_rates(query: Query) -> None:
    for node in nodes(parsed(query)):
        if isinstance(node, promql_parser.Call) and node.func.name in ("rate", "increase"):
            [selector] = [one for one in nodes(node) if isinstance(one, promql_parser.VectorSelector)]
            assert metric_of(selector.name).kind in ("counter", "histogram")


def test_every_metric_is_on_the_dashboard() -> None:
    names = {panel["title"] for panel in DASHBOARD["panels"]}
    shown = {metric_of(one.name).name for query in QUERIES if query.where[:-2] in names for one in selectors(query)}
    assert shown | set(NOT_SHOWN) == set(METRICS)
    assert not shown & set(NOT_SHOWN)


def test_the_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_every_alert_is_documented() -> None:
    rows = [row[0] for row in table("docs/metrics.md", "alert").values()]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(rule["alert"] for rule in RULES)


def test_every_metric_is_documented_as_the_table_has_it() -> None:
    documented = {
        name: [row[1], re.findall(r"`(\w+)`", row[2]), row[3]]
        for name, row in table("docs/metrics.md", "metric").items()
    }
    assert documented == {
        metric.name: [metric.kind, list(metric.labels), metric.help.rstrip(".")] for metric in METRICS.values()
    }
    assert [code(name) for name in documented] == list(METRICS)


def test_names_say_what_a_metric_is() -> None:
    for metric in METRICS.values():
        assert metric.name.startswith("errands_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.bounds) == (metric.kind == "histogram")
        assert list(metric.bounds) == sorted(metric.bounds)
        assert metric.help.endswith(".")
