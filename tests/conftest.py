"""What every test may use. A later engine needs one line in `STORAGES`."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import re
import sysconfig
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import errands
from errands.runtime.watchdog import Hold, Watchdog
from tests import redis_server
from tests.postgres import url_for
from tests.soak import examples

# How long an example takes says more about the machine than about the code.
settings.register_profile(
    "errands", settings(), max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("errands")

STORAGES: dict[str, Callable[[Path], str]] = {
    "memory": lambda folder: "memory",
    "sqlite": lambda folder: f"sqlite:///{folder / 'tasks.db'}",
    "postgresql": url_for,
    "redis": redis_server.shared_url,
}


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """Holds one event loop for the tests of a process: gRPC may still have a word for the loop of a test before."""
    yield  # noqa: PT022 - what ends with the fixture is the loop


# Servers of tests do not warn: a loaded machine would. What they do in the loop of a test is watched here instead.
os.environ["ERRANDS_LOOP_HOLD_WARNING"] = "none"
logging.getLogger("errands.runtime.watchdog").setLevel(logging.CRITICAL)

#: Seconds of processor time for which code of errands may hold the event loop. A server warns after 0.25; the processes
#: of the suite hold far more objects, and a single collection of garbage can take that long.
LONGEST_HOLD = 1.0


class _Collector:
    """Counts the seconds that garbage collection takes: it may strike in any code, and long in a large process."""

    seconds = 0.0
    _began = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.seconds += time.perf_counter() - self._began


_collector = _Collector()
gc.callbacks.append(_collector)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the tests themselves, half a million objects that are never garbage, out of every garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
async def _holds(anyio_backend: str) -> AsyncIterator[list[Hold]]:
    found: list[Hold] = []
    with Watchdog(LONGEST_HOLD, found.append, by_processor=True):
        yield found


@pytest.fixture(autouse=True)
def _the_loop_is_not_held(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test in which code of errands held the event loop; `holds_the_loop` says why a test may."""
    is_watched = request.node.get_closest_marker("anyio") and not request.node.get_closest_marker("holds_the_loop")
    found: list[Hold] = request.getfixturevalue("_holds") if is_watched else []
    collected = _collector.seconds
    yield
    if _collector.seconds - collected < LONGEST_HOLD / 2:
        assert [hold.place for hold in found if _is_ours(hold)] == []


def _is_ours(hold: Hold) -> bool:
    """Whether errands is at work there, and not the test, and not a module that is imported for the first time."""
    files = [frame.code.co_filename for frame in hold.frames]
    if any("importlib" in file or file.endswith("weakref.py") for file in files):
        return False
    library = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    own = [file for file in files if not file.startswith((*library, "<"))]
    return bool(own) and own[-1].startswith(str(Path(errands.__file__).parent))


_folders = itertools.count()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A new folder. The fixture of pytest looks through the folders of all tests before: 5 ms after 7,000 tests."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{name}-{next(_folders)}"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A storage URL of each engine in turn."""
    return STORAGES[request.param](tmp_path)
