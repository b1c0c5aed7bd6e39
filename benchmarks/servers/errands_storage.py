"""Where errands keeps the tasks of the benchmark."""

import os

from bench_agent import DATABASE, STORAGE, URL

#: NORMAL is what errands does by itself; FULL also survives the loss of power, as SQLite does by itself.
SYNCHRONOUS = os.environ.get("BENCH_SYNCHRONOUS", "NORMAL")

storage = f"sqlite:///{DATABASE}?synchronous={SYNCHRONOUS}" if STORAGE == "sqlite" else URL or "memory"
