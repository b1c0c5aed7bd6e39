"""Maps exceptions to errors for clients. The cause is logged with a reference and never sent.

`wire/status.py` has the tables from an `A2AError` to the codes of each binding.
"""

from __future__ import annotations

import logging
import secrets

from errands.errors import (
    A2AError,
    AuthenticationRequiredError,
    EngineError,
    InternalError,
    PermissionDeniedError,
    UnavailableError,
)

logger = logging.getLogger(__name__)


def client_error(error: Exception, what: str) -> A2AError:
    """Return the error to send to a client after `what` failed. An `A2AError` is returned unchanged."""
    if isinstance(error, A2AError):
        return error
    reference = secrets.token_hex(4)
    if isinstance(error, EngineError):
        logger.error("%s failed [%s]: %s", what, reference, error, extra={"correlation": reference})
        return UnavailableError(f"The task store is not available (reference {reference})")
    logger.error("%s failed [%s]", what, reference, exc_info=error, extra={"correlation": reference})
    return InternalError(f"Internal error (reference {reference})")


def error_headers(error: A2AError) -> tuple[tuple[bytes, bytes], ...]:
    """Return the HTTP headers that go with an error."""
    if isinstance(error, AuthenticationRequiredError | PermissionDeniedError):
        return tuple((b"www-authenticate", one.encode("latin-1", "replace")) for one in error.challenges)
    if isinstance(error, UnavailableError):
        return ((b"retry-after", b"%d" % error.retry_after),)
    return ()
