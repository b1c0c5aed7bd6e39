"""A2A as protobuf, for gRPC: between the official generated messages and `errands.model`, in both versions.

The generated messages are an extra, so nothing that works without it imports this package's modules at its top.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from errands.errors import ConfigurationError


@contextmanager
def grpc_extra() -> Iterator[None]:
    """Wrap an import that needs the extra. Raises `ConfigurationError` when it is not installed."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"gRPC needs an extra ({error}): pip install 'errands[grpc]'") from None
