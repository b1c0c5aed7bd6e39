"""Replicas in processes of their own, on one store."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import Process

ROOT = Path(__file__).parents[2]


class Replica(Process):
    def __init__(
        self, storage: str, *options: str, source: Path | None = None, module: str = "tests.cluster.replica"
    ) -> None:
        """`source`: where the package is, when it is not the one that is tested. `module`: the program that it runs."""
        super().__init__(module, storage, *options)
        self.source = source

    @property
    def environment(self) -> dict[str, str]:
        if self.source is None:
            return super().environment
        return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (self.source, ROOT)))}

    def stop(self) -> None:
        """Lets it finish what it is at."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    def gave_up(self) -> None:
        if self.source is None:
            super().gave_up()
        # What was released cannot be mended, and may have too little patience with a slow store: it is tried again.
        self.start()

    @property
    def has_died(self) -> bool:
        """Whether its process ended without being told to."""
        return self._process is not None and self._process.poll() == -signal.SIGKILL


class Cluster:
    def __init__(self, storages: list[str], *options: str, source: Path | None) -> None:
        self.replicas = [Replica(storage, *options, source=source) for storage in storages]
        self.kills = 0

    async def start(self) -> None:
        for replica in self.replicas:
            replica.start()
        for replica in self.replicas:
            await replica.ready()

    async def replace_one(self) -> None:
        """Kills a replica at a moment nobody has chosen, and starts it again."""
        replica = random.choice(self.replicas)
        replica.kill()
        self.kills += 1
        replica.start()
        await replica.ready()

    def any(self, *, but: Replica | None = None) -> Replica:
        return random.choice([replica for replica in self.replicas if replica is not but])

    def running(self, pid: int) -> Replica | None:
        """The replica that has this process."""
        return next((replica for replica in self.replicas if replica.pid == pid), None)


@contextmanager
def cluster_on(storages: list[str], *options: str, source: Path | None = None) -> Iterator[Cluster]:
    """`options` are those of `tests.cluster.replica`."""
    cluster = Cluster(storages, *options, source=source)
    try:
        yield cluster
    finally:
        for replica in cluster.replicas:
            replica.kill()
