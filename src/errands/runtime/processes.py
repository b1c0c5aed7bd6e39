"""`ProcessReporter` takes samples of this process every few seconds.

It keeps them for charts, and stores the newest for the other processes. It also measures what only the store knows,
such as the age of the queue, so that reading metrics costs the store nothing.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple, Self

import msgspec

from errands.engines.base import Engine
from errands.errors import StorageError
from errands.model.base import encode
from errands.model.log import ProcessReport, silent_since
from errands.runtime.figures import Figures, Sample
from errands.version import __version__

logger = logging.getLogger(__name__)

#: Seconds between two reports, and how many are kept in this process: those of a quarter of an hour.
EVERY = 5.0
KEPT = 180
#: Seconds for which a process that stops waits for the store. Without an answer the others notice that it is silent.
_LEAVING = 1.0

_read_samples = msgspec.json.Decoder(list[Sample]).decode


class Moment(NamedTuple):
    """The samples that were taken at one time, in milliseconds."""

    at: int
    samples: list[Sample]


class ProcessSamples(NamedTuple):
    """The samples of one process, and the labels that identify it among those that are shown together."""

    labels: dict[str, str]
    samples: list[Sample]


def samples_of(report: ProcessReport) -> list[Sample]:
    """Return the samples in a report. Raises `msgspec.DecodeError` for one that another release has written."""
    return _read_samples(report.figures)


class ProcessReporter:
    """Reports on this process as long as it is entered."""

    def __init__(
        self,
        engine: Engine,
        figures: Figures,
        *,
        process_id: str,
        agent: str,
        role: str,
        agents: Collection[str],
        group: str = "",
        loop_lag: Callable[[], float | None] = lambda: None,
        every: float = EVERY,
    ) -> None:
        """`agents` are those whose turns this process runs; `loop_lag` returns the lag since it was last asked.

        `group` names the processes that share their ports with this one, if there are any.
        """
        self._engine = engine
        self._figures = figures
        self._id = process_id
        self._agent = agent
        self._role = role
        self._agents = agents
        self._group = group
        #: When the others in the group last reported, and what.
        self._others: list[tuple[int, ProcessSamples]] = []
        self._loop_lag = loop_lag
        self._every = every
        self._started_at = engine.clock()
        #: Times and samples, as compressed JSON: a tenth of the memory.
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        figures = self._figures
        figures.describe(agent=self._agent, role=self._role, storage=self._engine.name, version=__version__)
        self._task = asyncio.create_task(self._run(), name="errands-process-report")
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        with suppress(StorageError, TimeoutError):
            async with asyncio.timeout(_LEAVING):
                await self._engine.forget_process(self._id)

    def current(self) -> ProcessReport:
        """Return the report of this moment."""
        return ProcessReport(
            id=self._id,
            agent=self._agent,
            role=self._role,
            version=__version__,
            group=self._group,
            started_at=self._started_at,
            at=self._engine.clock(),
            figures=encode(self._figures.samples()),
        )

    def exposed(self) -> list[ProcessSamples]:
        """Return the samples of this process, and the last ones of those that share its ports.

        A reader of metrics cannot choose which of them answers.
        """
        own = self._figures.samples()
        if not self._group:
            return [ProcessSamples({}, own)]
        since = silent_since(self._engine.clock())
        others = [samples for at, samples in self._others if at > since]
        return [ProcessSamples({"process": _pid_of(self._id)}, own), *others]

    def history(self, *, since: int = 0, step: int | None = None) -> list[Moment]:
        """Return the samples of the last quarter of an hour, the oldest first.

        Only those after `since`, and with a `step` the first in each, both in milliseconds.
        """
        kept = [(at, data) for at, data in self._kept if at > since]
        if step is not None:
            first = {at // step: (at, data) for at, data in reversed(kept)}
            kept = list(reversed(first.values()))
        return [Moment(at, _read_samples(zlib.decompress(data))) for at, data in kept]

    async def _run(self) -> None:
        while True:
            try:
                await self._report()
            except StorageError as error:
                logger.info("the store did not take the report of this process: %s", error)
            except Exception:
                logger.exception("unexpected error while this process reports; trying again")
            await asyncio.sleep(self._every)

    async def _report(self) -> None:
        # A value that the store does not return is unknown: the last one is not shown again.
        measured: dict[str, float | None] = {"errands_loop_lag_seconds": self._loop_lag()}
        try:
            age = await self._engine.queue_age(list(self._agents))
            due_since, dead = await self._engine.outbox_backlog(self._agent)
            lag = 0 if due_since is None else self._engine.clock() - due_since
            measured["errands_queue_age_seconds"] = (age or 0) / 1000
            measured["errands_outbox_lag_seconds"] = lag / 1000
            measured["errands_outbox_dead"] = dead
        finally:
            self._figures.measured = measured
            report = self.current()
            self._kept.append((report.at, zlib.compress(report.figures, 1)))
        await self._engine.report(report)
        if self._group:
            others: list[tuple[int, ProcessSamples]] = []
            for other in await self._engine.processes():
                if other.group == self._group and other.id != self._id:
                    with suppress(msgspec.DecodeError):
                        others.append((other.at, ProcessSamples({"process": _pid_of(other.id)}, samples_of(other))))
            self._others = others


def _pid_of(process_id: str) -> str:
    """Return the process id of the operating system that is part of ours; see `Leases.worker_id`."""
    return process_id.rpartition(":")[0].rpartition(":")[2]
