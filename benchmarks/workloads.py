"""The workloads and targets as data: run.py and report.py loop over these tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

MEMORY = "memory"
SQLITE = "sqlite"
POSTGRESQL = "postgresql"
REDIS = "redis"
#: The contender that is an older revision of errands.
OLD = "old"
STORAGES = (MEMORY, SQLITE, POSTGRESQL, REDIS)

#: Figures beyond these are marked, because the machine was busy with other work.
FOREIGN_LIMIT = 0.10
SPREAD_LIMIT = 0.25


@dataclass(frozen=True)
class Workload:
    name: str
    connections: int
    storages: tuple[str, ...]
    #: The chunks of one stream; 0 for a blocking send.
    chunks: int = 0
    #: The servers it is measured on; empty means all.
    servers: tuple[str, ...] = ()
    #: The fraction of the usual measuring time that it needs.
    share: float = 1.0
    #: Whether it uses gRPC instead of JSON-RPC.
    is_grpc: bool = False
    #: The protocol version; empty means the one that the server speaks best.
    dialect: str = ""

    @property
    def is_chunk_cost(self) -> bool:
        return self.chunks > 0 and self.connections == 1


def chunk_cost(chunks: int) -> Workload:
    return Workload(
        name=f"chunks-{chunks}",
        connections=1,
        storages=(MEMORY, SQLITE),
        chunks=chunks,
        servers=("errands",),
        share=0.5,
    )


WORKLOADS = (
    Workload("send-32", 32, STORAGES),
    Workload("send-32-v0.3", 32, (MEMORY,), servers=("errands",), dialect="0.3"),
    Workload("send-1", 1, (SQLITE, POSTGRESQL, REDIS)),
    Workload("stream-100", 8, STORAGES, chunks=100),
    Workload("grpc-send", 32, (MEMORY,), servers=("errands", "a2a-sdk"), is_grpc=True),
    Workload("grpc-stream-100", 8, (MEMORY,), chunks=100, servers=("errands", "a2a-sdk"), is_grpc=True),
    Workload("sdk-executor", 32, (SQLITE,), servers=("errands+sdk",)),
    Workload("waiting", 64, (POSTGRESQL,), servers=("1-worker", "2-workers")),
    chunk_cost(100),
    chunk_cost(1_000),
    chunk_cost(10_000),
)


class Cell(NamedTuple):
    """A cell of the table of results."""

    server: str
    storage: str
    workload: str

    def __str__(self) -> str:
        return f"{self.server} {self.storage} {self.workload}"


@dataclass(frozen=True)
class Figures:
    """The report of the load generator."""

    requests_per_s: float
    best_ms: float
    median_ms: float
    p99_ms: float
    requests: int
    #: The share of the two cores that other processes took meanwhile.
    foreign: float
    #: The spread of the rates of several repeats, as a fraction of their median.
    spread: float = 0.0

    @property
    def is_noisy(self) -> bool:
        return self.foreign > FOREIGN_LIMIT or self.spread > SPREAD_LIMIT

    @classmethod
    def over(cls, repeats: Sequence[Figures]) -> Figures:
        """Return the median of the repeats, but the minimum of `best`: a busy machine only adds time."""
        rates = [one.requests_per_s for one in repeats]
        return cls(
            requests_per_s=median(rates),
            best_ms=min(one.best_ms for one in repeats),
            median_ms=median(one.median_ms for one in repeats),
            p99_ms=median(one.p99_ms for one in repeats),
            requests=sum(one.requests for one in repeats),
            foreign=median(one.foreign for one in repeats),
            spread=(max(rates) - min(rates)) / median(rates),
        )


Metric = Callable[[Figures], float]
Results = Mapping[Cell, Figures]


def rate(figures: Figures) -> float:
    return figures.requests_per_s


def latency(figures: Figures) -> float:
    return figures.median_ms


def best_latency(figures: Figures) -> float:
    return figures.best_ms


@dataclass(frozen=True)
class Target:
    """A target for `metric` of `cell`, as a multiple of that of `against` if given."""

    cell: Cell
    metric: Metric
    limit: float
    against: Cell | None = None
    #: Whether the limit is a maximum; otherwise it is a minimum.
    at_most: bool = False
    #: Divisors of the two metrics before the comparison, such as the chunks of the two streams.
    scale: float = 1.0

    def value(self, results: Results) -> float | None:
        """Return the measured value, or None if a cell was not measured."""
        if self.cell not in results:
            return None
        value = self.metric(results[self.cell])
        if self.against is None:
            return value
        base = self.metric(results[self.against]) if self.against in results else 0.0
        return value / base / self.scale if base else None

    def is_noisy(self, results: Results) -> bool:
        return any(cell in results and results[cell].is_noisy for cell in (self.cell, self.against) if cell)

    def holds(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit


def flat_chunk_cost(storage: str) -> Target:
    short, long = Cell("errands", storage, "chunks-100"), Cell("errands", storage, "chunks-10000")
    return Target(long, best_latency, limit=1.0, against=short, at_most=True, scale=100)


SDK_SEND = Cell("a2a-sdk", MEMORY, "send-32")
SDK_STREAM = Cell("a2a-sdk", MEMORY, "stream-100")

TARGETS = (
    Target(Cell("errands", MEMORY, "send-32"), rate, 33, SDK_SEND),
    Target(Cell("errands", MEMORY, "send-32"), rate, 0.50, Cell("bare", MEMORY, "send-32")),
    Target(Cell("errands", MEMORY, "send-32-v0.3"), rate, 0.80, Cell("errands", MEMORY, "send-32")),
    Target(Cell("errands", SQLITE, "send-32"), rate, 14, SDK_SEND),
    Target(Cell("errands", SQLITE, "send-32"), rate, 60, Cell("a2a-sdk", SQLITE, "send-32")),
    Target(Cell("errands", SQLITE, "send-1"), latency, 0.6, at_most=True),
    Target(Cell("errands", MEMORY, "stream-100"), rate, 55, SDK_STREAM),
    Target(Cell("errands", SQLITE, "stream-100"), rate, 30, SDK_STREAM),
    Target(Cell("errands", MEMORY, "grpc-send"), rate, 6, Cell("a2a-sdk", MEMORY, "grpc-send")),
    Target(Cell("errands", MEMORY, "grpc-stream-100"), rate, 6, Cell("a2a-sdk", MEMORY, "grpc-stream-100")),
    Target(Cell("errands+sdk", SQLITE, "sdk-executor"), rate, 5, SDK_SEND),
    Target(Cell("errands", POSTGRESQL, "send-32"), rate, 30, Cell("a2a-sdk", POSTGRESQL, "send-32")),
    Target(Cell("errands", POSTGRESQL, "stream-100"), rate, 100, Cell("a2a-sdk", POSTGRESQL, "stream-100")),
    Target(Cell("errands", REDIS, "send-32"), rate, 30, Cell("a2akit", REDIS, "send-32")),
    Target(Cell("errands", REDIS, "stream-100"), rate, 40, Cell("a2akit", REDIS, "stream-100")),
    Target(Cell("2-workers", POSTGRESQL, "waiting"), rate, 1.6, Cell("1-worker", POSTGRESQL, "waiting")),
    flat_chunk_cost(MEMORY),
    flat_chunk_cost(SQLITE),
)
