"""`ProcessReporter`: how this process is, every few seconds: kept here for charts, and in the store for the others.

It also measures what can only be asked of the store, such as the age of the queue, so that readers of metrics cost the
store nothing however often they come.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

import msgspec

from errands.engines.base import Engine
from errands.errors import StorageError
from errands.model.base import encode
from errands.model.log import ProcessReport
from errands.runtime.figures import Figures, Sample
from errands.version import __version__

logger = logging.getLogger(__name__)

#: Seconds between two reports, and how many are kept in this process: those of a quarter of an hour.
EVERY = 5.0
KEPT = 180

_read_samples = msgspec.json.Decoder(list[Sample]).decode


class Moment(NamedTuple):
    """The samples that were taken at one time, in milliseconds."""

    at: int
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
        agents: Sequence[str],
        loop_lag: Callable[[], float | None] = lambda: None,
        every: float = EVERY,
    ) -> None:
        """`agents` are those whose turns this process runs; `loop_lag` returns the lag since it was last asked."""
        self._engine = engine
        self._figures = figures
        self._id = process_id
        self._agent = agent
        self._role = role
        self._agents = agents
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
        with suppress(StorageError):
            await self._engine.forget_process(self._id)

    def current(self) -> ProcessReport:
        """Return the report of this moment."""
        return ProcessReport(
            id=self._id,
            agent=self._agent,
            role=self._role,
            version=__version__,
            started_at=self._started_at,
            at=self._engine.clock(),
            figures=encode(self._figures.samples()),
        )

    def history(self) -> list[Moment]:
        """Return the samples of the last quarter of an hour, the oldest first."""
        return [Moment(at, _read_samples(zlib.decompress(data))) for at, data in self._kept]

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
        measured = self._figures.measured
        measured["errands_loop_lag_seconds"] = self._loop_lag()
        try:
            age = await self._engine.queue_age(self._agents)
            measured["errands_queue_age_seconds"] = (age or 0) / 1000
        except BaseException:
            # Unknown is not the same as before.
            measured["errands_queue_age_seconds"] = None
            raise
        finally:
            report = self.current()
            self._kept.append((report.at, zlib.compress(report.figures, 1)))
        await self._engine.report(report)
