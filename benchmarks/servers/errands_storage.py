"""The storage URL of errands in the benchmark."""

import os

from bench_agent import DATABASE, STORAGE, URL

#: NORMAL is errands' default; FULL, SQLite's default, also survives a power failure.
SYNCHRONOUS = os.environ.get("BENCH_SYNCHRONOUS", "NORMAL")

storage = f"sqlite:///{DATABASE}?synchronous={SYNCHRONOUS}" if STORAGE == "sqlite" else URL or "memory"
