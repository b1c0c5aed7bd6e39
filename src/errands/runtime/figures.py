"""`METRICS`, the table of everything that is measured, and `Figures`, the counts of one process.

Prometheus, the reports of processes, the documentation, the dashboard and the alert rules loop over the table or are
tested against it. A part that counts has the `Figures`, or None while metrics are off. Values that a part keeps anyway,
such as the number of running turns, are read when samples are taken.

No label takes its values from a request: operations, states, outcomes and causes are fixed, agents and models are those
of the program, and of models that providers name there are at most `MOST_MODELS`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec

from errands.engines.commit import BATCH_BOUNDS, COMMIT_BOUNDS, CommitCounts, Histogram
from errands.errors import A2AError
from errands.wire.status import STATUS

#: Upper bounds of the seconds of requests and turns.
SECONDS_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
#: Models that are counted by name; tokens of further ones count as `OTHER`.
MOST_MODELS = 50
OTHER = "other"
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One row of the table."""

    #: As Prometheus spells it.
    name: str
    kind: Kind
    #: One sentence.
    help: str
    labels: tuple[str, ...] = ()
    #: As the OpenTelemetry conventions write it.
    unit: str = "1"
    #: Upper bounds of a histogram's buckets.
    bounds: tuple[float, ...] = ()


# fmt: off
_METRICS = (
    Metric("errands_info", "gauge", "Always 1; the labels describe the process.",
           ("agent", "role", "storage", "version")),
    Metric("errands_requests_total", "counter",
           "Requests by operation, by binding, and by outcome: ok, or the reason of the error.",
           ("operation", "binding", "outcome"), "{request}"),
    Metric("errands_request_seconds", "histogram",
           "Seconds until a request was answered without an error, or its stream began.",
           ("operation",), "s", SECONDS_BOUNDS),
    Metric("errands_tasks_total", "counter", "Tasks that entered a state.", ("state",), "{task}"),
    Metric("errands_turns_running", "gauge", "Turns that run in this process.", (), "{turn}"),
    Metric("errands_turns_limit", "gauge",
           "Turns that may run in this process at the same time; missing without a limit.", (), "{turn}"),
    Metric("errands_turn_seconds", "histogram", "Seconds that the turns of an agent took, its waits included.",
           ("agent",), "s", SECONDS_BOUNDS),
    Metric("errands_queue_age_seconds", "gauge",
           "Seconds for which the longest waiting task has waited for a worker; 0 when none waits.", (), "s"),
    Metric("errands_leases_lost_total", "counter",
           "Running tasks that another process took over, or that ended or were deleted elsewhere.", (), "{lease}"),
    Metric("errands_attempts_total", "counter",
           "Leases of tasks by their cause: new, expired (a process died or stood still) or given back (it stopped).",
           ("cause",), "{lease}"),
    Metric("errands_commit_changes", "histogram",
           "Changes and other writes that shared one transaction; not with storage in memory.",
           (), "{change}", BATCH_BOUNDS),
    Metric("errands_commit_seconds", "histogram",
           "Seconds that the transactions took until they were durable; not with storage in memory.",
           (), "s", COMMIT_BOUNDS),
    Metric("errands_subscribers", "gauge", "Streams and other readers in this process that wait for events.",
           (), "{subscriber}"),
    Metric("errands_outbox_lag_seconds", "gauge",
           "Seconds for which the longest due push notification has been due; 0 when none is due.", (), "s"),
    Metric("errands_outbox_dead", "gauge",
           "Webhooks whose delivery was given up: dead letters, counted up to 10,000.", (), "{webhook}"),
    Metric("errands_deliveries_total", "counter",
           "Push notifications by outcome: delivered, failed (tried again) or dead (given up).",
           ("outcome",), "{delivery}"),
    Metric("errands_loop_lag_seconds", "gauge",
           "The longest time in the last seconds for which code held the event loop; missing without "
           "loop_hold_warning.", (), "s"),
    Metric("errands_model_tokens_total", "counter", "Tokens of model calls.", ("model", "kind"), "{token}"),
    Metric("errands_tool_calls_total", "counter",
           "Calls of tools and other agents by outcome: ok, failed or refused (by the policy).",
           ("outcome",), "{call}"),
    Metric("errands_traces_left_out_total", "counter",
           "Traces that were not recorded because there were more than otel_traces_per_second; missing without otel.",
           (), "{trace}"),
    Metric("errands_resident_bytes", "gauge", "Memory of the process; missing where the system does not report it.",
           (), "By"),
    Metric("errands_process_cpu_seconds_total", "counter", "Processor time of the process.", (), "s"),
)
# fmt: on
METRICS = {metric.name: metric for metric in _METRICS}

#: The label `operation` of a request that was refused before its operation was known.
UNKNOWN = "unknown"


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """The current value of a metric with some labels."""

    name: str
    labels: dict[str, str] = {}
    #: Of a histogram, the number of observations.
    value: float = 0.0
    #: Of a histogram, the sum of the observations, and how many were not above each of its bounds.
    sum: float = 0.0
    buckets: tuple[int, ...] = ()


class RequestSeconds(dict[tuple[str, str], Histogram]):
    """Histograms by operation and binding, made on first use: one call less for each request than `setdefault`."""

    def __missing__(self, key: tuple[str, str]) -> Histogram:
        histogram = self[key] = Histogram(SECONDS_BOUNDS)
        return histogram


class Figures:
    """The counts of one process since its start."""

    def __init__(self, commits: CommitCounts | None = None) -> None:
        #: What the engine counts.
        self._commits = commits
        #: The seconds of requests that were answered without an error, by operation and binding.
        self.answered = RequestSeconds()
        #: By operation, binding and reason.
        self._refused: dict[tuple[str, str, str], int] = {}
        #: By agent.
        self._turns: dict[str, Histogram] = {}
        self.leases_lost = 0
        self._deliveries = dict.fromkeys(("delivered", "failed", "dead"), 0)
        #: By model: tokens of prompts and of completions.
        self._tokens: dict[str, list[int]] = {}
        self._tool_calls = dict.fromkeys(("ok", "failed", "refused"), 0)
        self._info: dict[str, str] = {}
        self._readings: dict[str, Callable[[], float | None]] = {}
        #: What was measured last, by name; see `runtime/processes.py`.
        self.measured: dict[str, float | None] = {}

    # Counting

    def refused(self, operation: str, binding: str, error: A2AError) -> None:
        """Count a request that was answered with an error."""
        key = operation, binding, error.reason if error.reason in STATUS else OTHER
        self._refused[key] = self._refused.get(key, 0) + 1

    def turns(self, agent: str) -> Histogram:
        """Return the histogram for the seconds of an agent's turns."""
        return self._turns.setdefault(agent, Histogram(SECONDS_BOUNDS))

    def attempted_delivery(self, outcome: Literal["delivered", "failed", "dead"]) -> None:
        """Count a push notification."""
        self._deliveries[outcome] += 1

    def used_model(self, model: str, prompt: int, completion: int) -> None:
        """Count the tokens of a model call."""
        if model not in self._tokens and len(self._tokens) >= MOST_MODELS:
            model = OTHER
        tokens = self._tokens.setdefault(model, [0, 0])
        tokens[0] += prompt
        tokens[1] += completion

    def called_tool(self, outcome: Literal["ok", "failed", "refused"]) -> None:
        """Count a call of a tool or of another agent."""
        self._tool_calls[outcome] += 1

    # Reading

    def describe(self, **labels: str) -> None:
        """Set the labels of `errands_info`."""
        self._info = labels

    def read_from(self, name: str, read: Callable[[], float | None]) -> None:
        """Register `read`, which returns the value of a gauge or counter when samples are taken; None leaves it out."""
        self._readings[name] = read

    def samples(self) -> list[Sample]:
        """Return the current value of every metric that has one, in the order of the table."""
        return sorted(self._samples(), key=lambda sample: _ORDER[sample.name])

    def _samples(self) -> Iterator[Sample]:
        if self._info:
            yield Sample("errands_info", self._info, 1)
        yield from self._request_samples()
        for agent, turns in self._turns.items():
            yield _histogram_sample("errands_turn_seconds", turns, agent=agent)
        yield Sample("errands_leases_lost_total", value=self.leases_lost)
        if (commits := self._commits) is not None:
            for state, count in commits.states.items():
                yield Sample("errands_tasks_total", {"state": state.short}, count)
            for cause, count in commits.attempts.items():
                yield Sample("errands_attempts_total", {"cause": cause}, count)
            if commits.seconds.sum:
                yield _histogram_sample("errands_commit_changes", commits.changes)
                yield _histogram_sample("errands_commit_seconds", commits.seconds)
        for outcome, count in self._deliveries.items():
            yield Sample("errands_deliveries_total", {"outcome": outcome}, count)
        for model, tokens in self._tokens.items():
            for kind, count in zip(("prompt", "completion"), tokens, strict=True):
                yield Sample("errands_model_tokens_total", {"model": model, "kind": kind}, count)
        for outcome, count in self._tool_calls.items():
            yield Sample("errands_tool_calls_total", {"outcome": outcome}, count)
        for name, read in self._readings.items():
            if (value := read()) is not None:
                yield Sample(name, value=value)
        for name, measured in self.measured.items():
            if measured is not None:
                yield Sample(name, value=measured)
        yield Sample("errands_process_cpu_seconds_total", value=time.process_time())
        if (resident := resident_bytes()) is not None:
            yield Sample("errands_resident_bytes", value=resident)

    def _request_samples(self) -> Iterator[Sample]:
        by_operation: dict[str, Histogram] = {}
        for (operation, binding), histogram in self.answered.items():
            labels = {"operation": operation, "binding": binding, "outcome": "ok"}
            yield Sample("errands_requests_total", labels, sum(histogram.counts))
            whole = by_operation.setdefault(operation, Histogram(SECONDS_BOUNDS))
            whole.add(histogram)
        for (operation, binding, reason), count in self._refused.items():
            labels = {"operation": operation, "binding": binding, "outcome": reason}
            yield Sample("errands_requests_total", labels, count)
        for operation, whole in by_operation.items():
            yield _histogram_sample("errands_request_seconds", whole, operation=operation)


_ORDER = {name: number for number, name in enumerate(METRICS)}


def _histogram_sample(name: str, histogram: Histogram, **labels: str) -> Sample:
    total, buckets = 0, []
    for count in histogram.counts:
        total += count
        buckets.append(total)
    return Sample(name, labels, total, histogram.sum, tuple(buckets[:-1]))


def resident_bytes() -> int | None:
    """Return the memory of this process, None where the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * _PAGE
