"""A tracer provider for the process of the tests, as a program has one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.tracing.collector import Collector, MemoryExporter

#: A process has one provider for as long as it lives.
_EXPORTER = MemoryExporter()


@pytest.fixture(scope="session", autouse=True)
def provider(one_loop: None) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_EXPORTER))
    trace.set_tracer_provider(provider)


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    _EXPORTER.collector = Collector(tmp_path)
    yield _EXPORTER.collector
    _EXPORTER.collector = None
