"""The ids that errands gives to tasks, contexts and messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import RFC_4122, UUID

import pytest

from errands.clock import system_clock
from errands.runtime import journal
from errands.runtime.journal import new_id


def draw(count: int) -> list[str]:
    return [new_id() for _ in range(count)]


def test_ids_are_uuids_that_begin_with_the_time() -> None:
    journal._ids.clear()
    before = system_clock()
    ids = [UUID(each) for each in draw(1000)]
    assert {(each.version, each.variant) for each in ids} == {(7, RFC_4122)}
    assert all(before <= each.int >> 80 <= system_clock() for each in ids)
    assert len({each.int & (1 << 60) - 1 for each in ids}) == 1000


@pytest.fixture
def hasty_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads that take turns after nearly every step, and nearly always draw new ids."""
    monkeypatch.setattr(journal, "_DRAWN", 2)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty_threads")
def test_threads_get_ids_of_their_own() -> None:
    with ThreadPoolExecutor(4) as threads:
        ids = [each for drawn in threads.map(draw, [20_000] * 4) for each in drawn]
    assert len(set(ids)) == 80_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside the threads of other tests
def test_so_do_child_processes() -> None:
    new_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, " ".join(draw(200)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 65536).decode().split()
    os.close(reader)
    os.close(writer)
    assert len({*theirs, *draw(200)}) == 400
