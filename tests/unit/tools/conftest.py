"""A service for the tests of one module; each test finds it as if it were new."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live import live
from tests.unit.tools.support import Service


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    service = Service()
    with live(service.app) as service.url:
        yield service


@pytest.fixture
def service(running: Service) -> Service:
    fresh = Service()
    running.seen, running.answer = fresh.seen, fresh.answer
    return running
