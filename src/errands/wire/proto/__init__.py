"""A2A as protobuf, for gRPC: the official generated messages and `errands.model`, both ways, in both versions.

The stubs are an extra, so nothing outside this package imports them at the top: `grpc_extra` says what to install.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from errands.errors import ConfigurationError


@contextmanager
def grpc_extra() -> Iterator[None]:
    """Around the first import of what the extra brings. Raises `ConfigurationError` when it is not installed."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"gRPC needs an extra ({error}): pip install 'errands[grpc]'") from None
