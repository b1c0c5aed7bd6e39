"""Importing people's programs without keeping them."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_INSTALLED = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


@contextmanager
def forgotten_imports() -> Iterator[None]:
    """Programs imported inside are forgotten after it; errands and what is installed must be there only once."""
    modules, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if not name.startswith("errands.") and not _is_installed(sys.modules[name]):
                del sys.modules[name]


def _is_installed(module: ModuleType) -> bool:
    places = [module.__file__] if getattr(module, "__file__", None) else list(getattr(module, "__path__", []))
    return all(str(place).startswith(_INSTALLED) for place in places)
