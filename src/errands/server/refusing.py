"""What a client is told of whatever went wrong: the cause is logged with a reference and never sent."""

from __future__ import annotations

import logging
import secrets

from errands.errors import A2AError, EngineError, InternalError, UnavailableError

logger = logging.getLogger(__name__)


def refusal(error: Exception, what: str) -> A2AError:
    """The error as it is when it is meant for clients; otherwise one that is, for `what` failed."""
    if isinstance(error, A2AError):
        return error
    reference = secrets.token_hex(4)
    if isinstance(error, EngineError):
        logger.error("%s failed [%s]: %s", what, reference, error)
        return UnavailableError(f"The task store is not available (reference {reference})")
    logger.error("%s failed [%s]", what, reference, exc_info=error)
    return InternalError(f"Internal error (reference {reference})")
