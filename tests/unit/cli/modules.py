"""Importing people's programs without keeping them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def forgotten_imports() -> Iterator[None]:
    """Whatever is imported inside is forgotten after it, but for errands, of which there must be only one."""
    modules, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if not name.startswith("errands."):
                del sys.modules[name]
