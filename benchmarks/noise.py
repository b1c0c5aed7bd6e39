"""How much of the machine something else took while a figure was measured. Knows Linux; elsewhere it sees nothing."""

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


def ticks_of_process(pid: int) -> int:
    # The name of the command, in parentheses, may itself hold spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@dataclass
class Watch:
    """From its making on, watches `cores` for work that is not the server's."""

    cores: tuple[int, ...]
    server: int

    def __post_init__(self) -> None:
        self._started = time.monotonic()
        self._ticks = self._others()

    def _others(self) -> int:
        return ticks_of_cores(self.cores) - ticks_of_process(self.server) if STAT.exists() else 0

    def foreign_share(self, load_s: float) -> float:
        """The part of the cores' time that went elsewhere; `load_s` is the processor time of the load generator."""
        if not self.cores or not STAT.exists():
            return 0.0
        elsewhere = (self._others() - self._ticks) / os.sysconf("SC_CLK_TCK") - load_s
        return max(0.0, elsewhere / ((time.monotonic() - self._started) * len(self.cores)))
