"""The two forms of a long test: short in `make test`, long in `make soak`, which sets ERRANDS_SOAK."""

from __future__ import annotations

import os

LONG = bool(os.environ.get("ERRANDS_SOAK"))


def examples(number: int) -> int:
    """Return how many examples of a property are tried: all of them in the long form, a quarter in the short one."""
    return number if LONG else number // 4
