"""How the model is written as bytes. A protocol version is a table and a codec, the same for server and client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from errands.errors import ConfigurationError


@contextmanager
def signing_extra() -> Iterator[None]:
    """Wrap an import of `errands.wire.card_signing`. Raises `ConfigurationError` when its extra is not installed."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(
            f"signatures of agent cards need an extra ({error}): pip install 'errands[signing]'"
        ) from None
