"""A tracer provider for the process of the tests, as a program has one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.tracing.collector import Collector, MemoryExporter

_EXPORTER = MemoryExporter()


@pytest.fixture(scope="session", autouse=True)
def provider(one_loop: None) -> None:
    # A process has one for as long as it lives, and a program of the documentation may have set it.
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    provider.add_span_processor(SimpleSpanProcessor(_EXPORTER))


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    _EXPORTER.collector = Collector(tmp_path)
    yield _EXPORTER.collector
    _EXPORTER.collector = None
