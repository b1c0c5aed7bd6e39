"""Cancels of the turns that run in this process: asked for here or elsewhere, and by force when nothing else helps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from errands.errors import ErrandsError
from errands.runtime.execution import Execution

logger = logging.getLogger(__name__)


class Stopper:
    def __init__(self, running: Mapping[str, Execution], *, force_timeout: float) -> None:
        """A handler has `force_timeout` seconds to end its turn by itself."""
        self._running = running
        self._force_timeout = force_timeout
        self._forcing: set[asyncio.Task[None]] = set()

    def request(self, task_id: str) -> None:
        """Tells a turn that it is wanted canceled, if it runs here."""
        if (execution := self._running.get(task_id)) is not None:
            self.signal(execution)

    def signal(self, execution: Execution) -> None:
        execution.signal_cancel()
        if execution.force_timer is None:
            loop = asyncio.get_running_loop()
            execution.force_timer = loop.call_later(self._force_timeout, self._force, execution)

    def _force(self, execution: Execution) -> None:
        if self._running.get(execution.task_id) is execution:
            forcing = asyncio.get_running_loop().create_task(self._cancel_by_force(execution))
            self._forcing.add(forcing)
            forcing.add_done_callback(self._forcing.discard)

    async def _cancel_by_force(self, execution: Execution) -> None:
        # The log first: the task is canceled even when the handler does not let itself be stopped.
        try:
            if execution.ctx is not None and not execution.turn_ended:
                await execution.ctx._turn.cancel_by_force()
        except ErrandsError as error:
            logger.info("task %s was not canceled by force: %s", execution.task_id, error)
        execution.stop("force")
