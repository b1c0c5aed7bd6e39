"""`errands` with an SDK, as `opentelemetry-instrument` runs it: `command.py FOLDER ARGUMENTS`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from errands.cli import main
from tests.tracing.collector import FileExporter

if __name__ == "__main__":
    provider = TracerProvider()
    provider.add_span_processor(
        SimpleSpanProcessor(FileExporter(Path(sys.argv.pop(1)) / f"command-{os.getpid()}.spans"))
    )
    trace.set_tracer_provider(provider)
    main()
