"""The dashboard of `errands top`: figures computed from answers of the operator API, and their drawing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from errands.cli.printing import clean, counted, duration, one_line, state_text, table
from errands.runtime.figures import METRICS, Sample

#: Milliseconds over which rates and percentiles are computed.
WINDOW = 60_000
#: Seconds for which the oldest task may wait, and the event loop may be blocked, in a healthy server.
_LONG_WAIT, _LONG_HOLD = 60.0, 0.25
#: The share of requests that may fail in a healthy server.
_MANY_ERRORS = 0.05
#: Errors that are caused by the server, not by what its clients sent.
_OF_THE_SERVER = frozenset({"INTERNAL", "INVALID_AGENT_RESPONSE", "OVERLOADED", "UNAVAILABLE"})
_REQUESTS, _SECONDS = "errands_requests_total", "errands_request_seconds"


class _OperatorAnswer(msgspec.Struct, rename="camel"):
    """An object of the operator API, without fields that are not used."""


class Reported(_OperatorAnswer):
    """The figures of a process at one moment."""

    id: str
    role: str
    version: str
    started_at: int
    at: int
    figures: list[Sample]


class PastFigures(_OperatorAnswer):
    at: int
    figures: list[Sample]


class ReportedHere(Reported):
    """The answering process, with its history."""

    samples: list[PastFigures] = []


class FiguresPage(_OperatorAnswer):
    now: int
    process: ReportedHere
    processes: list[Reported]


class RunningRow(_OperatorAnswer):
    task_id: str
    agent: str
    owner: str
    state: str
    worker: str
    attempt: int
    lease_until: int
    age: int
    cancel_requested: bool = False


#: The columns by which running tasks can be sorted, with their sort keys.
SORT_KEYS: dict[str, Callable[[RunningRow], Any]] = {
    "age": lambda task: (-task.age, task.task_id),
    "lease": lambda task: (task.lease_until, task.task_id),
    "agent": lambda task: (task.agent, -task.age),
    "owner": lambda task: (task.owner, -task.age),
}


class ReviewRow(_OperatorAnswer):
    task_id: str
    agent: str
    user: str
    since: int
    function: str | None = None
    text: str = ""


class OutboxRow(_OperatorAnswer):
    task_id: str
    config_id: str
    host: str
    attempts: int
    error: str
    dead: bool


class Look(msgspec.Struct):
    """Everything that was read at one time."""

    figures: FiguresPage
    running: list[RunningRow]
    reviews: list[ReviewRow]
    outbox: list[OutboxRow]

    def processes(self) -> list[Reported]:
        return [self.figures.process, *self.figures.processes]


class ProcessView(msgspec.Struct, rename="camel"):
    """One process, with rates of the last minute, or of the time since its start if that is shorter."""

    id: str
    role: str
    version: str
    up_seconds: float
    #: Processor seconds per second.
    cpu: float
    resident_bytes: int | None
    running: int
    limit: int | None
    requests_per_second: float
    loop_lag_seconds: float | None


class Overview(msgspec.Struct, rename="camel"):
    """What the dashboard shows. Times are seconds, or milliseconds since 1970."""

    now: int
    #: What is wrong; empty if the server is healthy.
    problems: list[str]
    #: The seconds over which rates and percentiles are computed.
    window_seconds: float
    requests_per_second: float
    errors_per_second: float
    #: Seconds until a request was answered, by percentile; empty without requests.
    latency: dict[str, float]
    tasks_per_second: dict[str, float]
    queue_age_seconds: float
    running: int
    limit: int | None
    subscribers: int
    leases_lost: int
    outbox_lag_seconds: float
    outbox_dead: int
    model_tokens_per_second: float
    processes: list[ProcessView]
    running_tasks: list[RunningRow]
    reviews: list[ReviewRow]
    outbox: list[OutboxRow]


class _Totals:
    """Differences between the figures of a process and earlier ones."""

    def __init__(self, samples: Sequence[Sample], before: Sequence[Sample]) -> None:
        self._samples = samples
        self._before = {(sample.name, *sorted(sample.labels.items())): sample for sample in before}

    def gained(self, name: str, **labels: str) -> float:
        """Return the increase of a counter, or of the count of a histogram."""
        return sum(sample.value - self._earlier(sample).value for sample in self._of(name, labels))

    def buckets(self, name: str) -> list[float]:
        """Return the increase of each bucket of a histogram. The last bucket is above all bounds."""
        counts = [0.0] * (len(METRICS[name].bounds) + 1)
        for sample in self._of(name, {}):
            earlier = self._earlier(sample)
            cumulative = [*sample.buckets, sample.value]
            former = [*(earlier.buckets or [0] * len(sample.buckets)), earlier.value]
            if len(cumulative) != len(counts) or len(former) != len(counts):
                continue  # of another release
            gained = [now - then for now, then in zip(cumulative, former, strict=True)]
            for position, value in enumerate(gained):
                counts[position] += value - (gained[position - 1] if position else 0)
        return counts

    def newest(self, name: str) -> float | None:
        """Return the value of a gauge."""
        found = [sample.value for sample in self._of(name, {})]
        return sum(found) if found else None

    def _of(self, name: str, labels: dict[str, str]) -> Iterable[Sample]:
        return (one for one in self._samples if one.name == name and labels.items() <= one.labels.items())

    def _earlier(self, sample: Sample) -> Sample:
        return self._before.get((sample.name, *sorted(sample.labels.items())), Sample(sample.name))


class ReportHistory:
    """Earlier reports of each process, as far back as rates and percentiles need them."""

    def __init__(self) -> None:
        #: By process: times and figures, the oldest first.
        self._kept: dict[str, deque[tuple[int, list[Sample]]]] = {}

    def add(self, look: Look) -> None:
        """Add the reports of a look, and the history that the answering process reported."""
        here = look.figures.process
        for past in here.samples:
            self._add(here.id, past.at, past.figures)
        for process in look.processes():
            self._add(process.id, process.at, process.figures)
        present = {process.id for process in look.processes()}
        self._kept = {name: kept for name, kept in self._kept.items() if name in present}

    def _add(self, process_id: str, at: int, figures: list[Sample]) -> None:
        kept = self._kept.setdefault(process_id, deque())
        if not kept or kept[-1][0] < at:
            kept.append((at, figures))
        while len(kept) > 2 and kept[1][0] <= at - WINDOW:
            kept.popleft()

    def before(self, process: Reported) -> tuple[int, list[Sample]]:
        """Return the time and the figures from which rates are computed: the start of a process that was seen once."""
        kept = self._kept.get(process.id)
        return kept[0] if kept and kept[0][0] < process.at else (process.started_at, [])


def overview(look: Look, history: ReportHistory) -> Overview:
    """Compute what is shown of a look, which must have been added to the history."""
    views: list[ProcessView] = []
    totals: list[tuple[_Totals, float]] = []
    for process in look.processes():
        at, figures = history.before(process)
        seconds = max((process.at - at) / 1000, 0.001)
        total = _Totals(process.figures, figures)
        totals.append((total, seconds))
        resident, limit = total.newest("errands_resident_bytes"), total.newest("errands_turns_limit")
        views.append(
            ProcessView(
                id=process.id,
                role=process.role,
                version=process.version,
                up_seconds=(process.at - process.started_at) / 1000,
                cpu=total.gained("errands_process_cpu_seconds_total") / seconds,
                resident_bytes=None if resident is None else int(resident),
                running=int(total.newest("errands_turns_running") or 0),
                limit=None if limit is None else int(limit),
                requests_per_second=total.gained(_REQUESTS) / seconds,
                loop_lag_seconds=total.newest("errands_loop_lag_seconds"),
            )
        )

    def rate(name: str, **labels: str) -> float:
        return sum(total.gained(name, **labels) / seconds for total, seconds in totals)

    def most(name: str) -> float:
        return max((total.newest(name) or 0 for total, _ in totals), default=0)

    states = {sample.labels.get("state", "") for one in look.processes() for sample in one.figures
              if sample.name == "errands_tasks_total"}  # fmt: skip
    buckets = [sum(column) for column in zip(*(total.buckets(_SECONDS) for total, _ in totals), strict=True)]
    limits = [view.limit for view in views]
    requests = rate(_REQUESTS)
    found = Overview(
        now=look.figures.now,
        problems=[],
        window_seconds=round(max(seconds for _, seconds in totals), 1),
        requests_per_second=requests,
        errors_per_second=requests - rate(_REQUESTS, outcome="ok"),
        latency=percentiles(METRICS[_SECONDS].bounds, buckets),
        tasks_per_second={state: rate("errands_tasks_total", state=state) for state in sorted(states)},
        queue_age_seconds=most("errands_queue_age_seconds"),
        running=sum(view.running for view in views),
        limit=None if None in limits else sum(limit for limit in limits if limit is not None),
        subscribers=int(sum(total.newest("errands_subscribers") or 0 for total, _ in totals)),
        leases_lost=int(sum(total.gained("errands_leases_lost_total") for total, _ in totals)),
        outbox_lag_seconds=most("errands_outbox_lag_seconds"),
        outbox_dead=int(most("errands_outbox_dead")),
        model_tokens_per_second=rate("errands_model_tokens_total"),
        processes=views,
        running_tasks=look.running,
        reviews=look.reviews,
        outbox=look.outbox,
    )
    failing = sum(rate(_REQUESTS, outcome=outcome) for outcome in _OF_THE_SERVER)
    found.problems = list(_problems(found, failing))
    return found


def _problems(found: Overview, failing: float) -> Iterable[str]:
    if found.queue_age_seconds > _LONG_WAIT:
        yield f"the oldest task has waited for {found.queue_age_seconds:.0f} s"
    if failing > _MANY_ERRORS * max(found.requests_per_second, 0.001):
        yield f"{failing:.1f} requests fail per second"
    if found.leases_lost:
        yield f"{counted(found.leases_lost, 'lease')} lost"
    if found.outbox_dead:
        yield f"{counted(found.outbox_dead, 'webhook')} given up"
    for process in found.processes:
        if (process.loop_lag_seconds or 0) > _LONG_HOLD:
            yield f"code blocks the event loop of {process.id} for {process.loop_lag_seconds:.1f} s"


def percentiles(bounds: Sequence[float], counts: Sequence[float]) -> dict[str, float]:
    """Return the median and two more percentiles of a histogram, interpolated within its buckets."""
    total = sum(counts)
    if total <= 0:
        return {}
    return {f"p{percent}": _percentile(bounds, counts, total * percent / 100) for percent in (50, 95, 99)}


def _percentile(bounds: Sequence[float], counts: Sequence[float], rank: float) -> float:
    below = 0.0
    for number, count in enumerate(counts):
        if below + count >= rank and count > 0:
            if number == len(bounds):
                break
            least = bounds[number - 1] if number else 0.0
            return least + (bounds[number] - least) * (rank - below) / count
        below += count
    return bounds[-1]


# Drawing


def draw(found: Overview, title: str, hint: str, sort: str, now: int, room: int) -> RenderableType:
    """Return the dashboard. `now` is later than the look it shows, and `room` is the number of lines for tasks."""
    verdict = Text("healthy", "green") if not found.problems else Text("; ".join(map(clean, found.problems)), "red")
    parts: list[RenderableType] = [
        Text.assemble((clean(title), "bold"), "  ", verdict),
        Text(hint, "dim"),
        Text(),
        _figures(found),
        Text(),
        _processes(found),
        Text(),
        _tasks(found, sort, now, room),
    ]
    if found.reviews:
        rows = [
            (one.task_id, one.user, duration(now - one.since), one_line(f"{one.function or ''} {one.text}".strip()))
            for one in found.reviews[:5]
        ]
        parts += [Text(), table(("REVIEW OF TASK", "REVIEWER", "SINCE", "SUBJECT"), rows)]
    if found.outbox:
        outbox = [
            (one.task_id, one.host, "dead" if one.dead else str(one.attempts), one_line(one.error))
            for one in found.outbox[:5]
        ]
        parts += [Text(), table(("WEBHOOK OF TASK", "HOST", "ATTEMPTS", "ERROR"), outbox)]
    return Group(*parts)


def _figures(found: Overview) -> Table:
    grid = Table.grid(padding=(0, 3))
    latency = "  ".join(f"{name} {_seconds(value)}" for name, value in found.latency.items()) or "no requests"
    states = "  ".join(f"{_short(state)} {value:.1f}/s" for state, value in found.tasks_per_second.items() if value)
    slots = f"{found.running} of {found.limit}" if found.limit is not None else f"{found.running}"
    for row in (
        ("requests", f"{found.requests_per_second:.1f}/s", f"errors {found.errors_per_second:.1f}/s", latency),
        ("tasks", states or "none", f"tokens {found.model_tokens_per_second:.0f}/s", ""),
        ("turns", f"running {slots}", f"queue age {_seconds(found.queue_age_seconds)}", f"lost {found.leases_lost}"),
        (
            "waiting",
            f"reviews {len(found.reviews)}",
            f"outbox lag {_seconds(found.outbox_lag_seconds)}",
            f"dead {found.outbox_dead}   readers {found.subscribers}",
        ),
    ):
        grid.add_row(Text(row[0], "dim"), *row[1:])
    return grid


def _processes(found: Overview) -> Table:
    rows = [
        (
            one.id,
            one.role,
            duration(int(one.up_seconds * 1000)),
            f"{one.cpu * 100:.0f} %",
            f"{one.resident_bytes / 2**20:.0f} MB" if one.resident_bytes is not None else "",
            f"{one.running}/{one.limit}" if one.limit is not None else f"{one.running}",
            f"{one.requests_per_second:.1f}",
            _seconds(one.loop_lag_seconds) if one.loop_lag_seconds is not None else "",
        )
        for one in found.processes[:10]
    ]
    return table(("PROCESS", "ROLE", "UP", "CPU", "MEMORY", "TURNS", "REQ/S", "LOOP LAG"), rows, whole=1)


def _tasks(found: Overview, sort: str, now: int, room: int) -> RenderableType:
    tasks = sorted(found.running_tasks, key=SORT_KEYS[sort])
    if not tasks:
        return Text("No task is running.", "dim")
    rows = [
        (
            task.task_id,
            state_text("canceling" if task.cancel_requested else task.state),
            str(task.attempt),
            duration(task.age + now - found.now),
            _lease(task.lease_until - now),
            task.agent,
            task.owner,
        )
        for task in tasks[:room]
    ]
    names = [name + (" ▾" if name.lower() == sort else "") for name in ("TASK", "STATE", "ATTEMPT", "AGE", "LEASE")]
    names += [name + (" ▾" if name.lower() == sort else "") for name in ("AGENT", "OWNER")]
    shown = table(names, rows, whole=5)
    left = len(tasks) - len(rows)
    return Group(shown, Text(f"{left} more", "dim")) if left else shown


def _lease(left: int) -> Text:
    return Text(f"{left / 1000:.0f} s", "" if left > 5000 else "yellow") if left > 0 else Text("expired", "red")


def _short(state: str) -> str:
    return state.removeprefix("TASK_STATE_").lower().replace("_", "-")


def _seconds(value: float) -> str:
    if value and value < 1:
        return f"{value * 1000:.1f} ms" if value < 0.1 else f"{value * 1000:.0f} ms"
    return f"{value:.1f} s"
