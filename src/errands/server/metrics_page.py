"""`/metrics`: the figures of this process in the text format of Prometheus, and who may read them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from errands.errors import A2AError, MethodNotFoundError, PermissionDeniedError
from errands.model.requests import ListTasksRequest
from errands.operations import OPERATIONS
from errands.runtime.figures import METRICS, Sample
from errands.runtime.processes import ProcessReporter, ProcessSamples
from errands.runtime.settings import Settings
from errands.server.access_audit import AccessAudit
from errands.server.asgi import HttpExchange
from errands.server.authorization import EVERY_OWNER, OWNER_HEADER
from errands.server.blobs import Identify

MEDIA_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """Serves the metrics to operators; without authentication, to this machine; with `metrics_public`, to everyone."""

    def __init__(
        self,
        reporter: ProcessReporter,
        identify: Identify | None,
        settings: Settings,
        is_from_here: Callable[[HttpExchange], bool],
        audit: AccessAudit | None = None,
    ) -> None:
        """Without authentication, and in processes that take no requests, `identify` is None: callers are not known.

        `is_from_here` returns whether callers are not asked who they are, and a request comes from this machine.
        """
        self._reporter = reporter
        self._identify = identify
        self._settings = settings
        self._is_from_here = is_from_here
        self._audit = audit

    async def serve(self, exchange: HttpExchange) -> None:
        """Serve a request. Raises `A2AError`."""
        if not self._settings.metrics_public:
            await self._check(exchange)
        body = b"".join(exposition(self._reporter.exposed()))
        await exchange.respond(200, body, MEDIA_TYPE, ((b"cache-control", b"no-store"),))

    async def _check(self, exchange: HttpExchange) -> None:
        """Raise `A2AError` unless the caller may know about all tasks of the agent."""
        if self._identify is None:
            if not self._is_from_here(exchange):
                raise MethodNotFoundError(
                    "The metrics are shown to operators, and callers are not known here; for everyone who reaches this "
                    "server set ERRANDS_METRICS_PUBLIC=true"
                )
            return
        # Decided like a list of the tasks of every owner.
        exchange.headers[OWNER_HEADER.lower().encode()] = EVERY_OWNER.encode()
        request = ListTasksRequest()
        try:
            try:
                call = await self._identify(OPERATIONS["ListTasks"], request, exchange)
            except PermissionDeniedError:
                raise PermissionDeniedError(_FOR_OPERATORS) from None
            if call.reach != "agent":
                raise PermissionDeniedError(_FOR_OPERATORS)
        except A2AError as error:
            if self._audit is not None:
                await self._audit.deny("metrics", request, exchange, error)
            raise


_FOR_OPERATORS = (
    "The metrics are about the tasks of every owner: they need an access rule with grant=read and reach=agent, unless "
    "ERRANDS_METRICS_PUBLIC=true shows them to everyone"
)


# The text format: https://prometheus.io/docs/instrumenting/exposition_formats/


_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


def exposition(processes: Sequence[ProcessSamples]) -> Iterator[bytes]:
    """Yield the lines of the text format, grouped by metric as the format requires."""
    by_name: defaultdict[str, list[tuple[Mapping[str, str], Sample]]] = defaultdict(list)
    for labels, samples in processes:
        for sample in samples:
            by_name[sample.name].append((labels, sample))
    for metric in METRICS.values():
        found = by_name[metric.name]
        if found:
            yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n".encode()
        for added, sample in found:
            labels = {**sample.labels, **added}
            if metric.kind != "histogram":
                yield _line(metric.name, labels, sample.value)
            elif len(sample.buckets) == len(metric.bounds):  # else of another release, before an update
                counts = zip((*metric.bounds, float("inf")), (*sample.buckets, sample.value), strict=True)
                for bound, count in counts:
                    yield _line(f"{metric.name}_bucket", {**labels, "le": _number(bound)}, count)
                yield _line(f"{metric.name}_sum", labels, sample.sum)
                yield _line(f"{metric.name}_count", labels, sample.value)


def _line(name: str, labels: Mapping[str, str], value: float) -> bytes:
    pairs = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in labels.items())
    return f"{name}{'{' if pairs else ''}{pairs}{'}' if pairs else ''} {_number(value)}\n".encode("utf-8", "replace")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)
