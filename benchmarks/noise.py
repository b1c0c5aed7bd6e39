"""Measure how much processor time other programs took during a measurement. Works on Linux only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
#: The columns of /proc/stat that count as work: user, nice, system, steal.
WORK_COLUMNS = (1, 2, 3, 8)


def ticks_of_cores(cores: Iterable[int]) -> int:
    names = {f"cpu{core}" for core in cores}
    rows = [line.split() for line in STAT.read_text().splitlines()]
    return sum(int(row[column]) for row in rows if row[0] in names for column in WORK_COLUMNS)


def ticks_of_tree(pid: int) -> int:
    """Return the ticks of a process and of its running and ended children."""
    try:
        # The name of the command, in parentheses, may contain spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(map(int, fields[11:15])) + sum(ticks_of_tree(int(child)) for child in children)


@dataclass
class Watch:
    """Watches `cores` for work of other processes than these and their children."""

    cores: tuple[int, ...]
    pids: tuple[int, ...]

    def __post_init__(self) -> None:
        self._started = time.monotonic()
        self._ticks = self._others()

    def _others(self) -> int:
        return ticks_of_cores(self.cores) - sum(map(ticks_of_tree, self.pids)) if STAT.exists() else 0

    def foreign_share(self, load_s: float) -> float:
        """Return the share of the cores' time that other processes took; `load_s` is the load generator's."""
        if not self.cores or not STAT.exists():
            return 0.0
        elsewhere = (self._others() - self._ticks) / os.sysconf("SC_CLK_TCK") - load_s
        return max(0.0, elsewhere / ((time.monotonic() - self._started) * len(self.cores)))
