"""Ports for servers that come and go at a fixed address, and ports where nobody listens."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

#: Below those that the system gives to connections and to whoever asks for any port: nobody gets one of these by chance
#: while its server is away. Ten thousand above is room for the nodes of a Redis cluster to talk.
_FIRST = 11_000
_WORKERS, _EACH = 8, 1_250


def _candidates() -> Iterator[int]:
    """Every worker of pytest-xdist has ports of its own, and begins anywhere among them."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    # Hypothesis has the other source of chance begin anew.
    for number in itertools.count(random.SystemRandom().randrange(_EACH)):
        yield _FIRST + worker * _EACH + number % _EACH


_CANDIDATES = _candidates()


def free_port() -> int:
    for port in _CANDIDATES:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("there is always another one")


@contextmanager
def silent_port() -> Iterator[int]:
    """One that is taken and where nobody listens: connections to it are refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]
