"""The extra that manifests need. Nothing here imports it at the top, so that errands starts without it."""

from __future__ import annotations

import importlib
from typing import Any

from errands.errors import ConfigurationError


def from_extra(module: str) -> Any:
    """A module of the extra `agents`. Raises `ConfigurationError` when it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"manifests and policy files need an extra ({error}): pip install 'errands[agents]'"
        ) from None
