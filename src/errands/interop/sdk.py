"""The port to one generation of the official SDK: our request and queue as its own classes, its errors as ours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from errands.errors import A2AError
from errands.runtime.executor import EventQueue, RequestContext
from errands.wire.status import ERRORS

_ERROR_CLASSES = {cls.__name__: cls for cls in ERRORS.values()}


class Sdk(ABC):
    @abstractmethod
    def context(self, context: RequestContext) -> Any:
        """The SDK's RequestContext, with everything that ours has."""

    @abstractmethod
    def queue(self, queue: EventQueue) -> Any:
        """A queue of the SDK's class; what is put into it comes out of ours."""

    @abstractmethod
    def error(self, raised: Exception) -> A2AError | None:
        """One of the protocol's errors that an executor raised on purpose, as ours; None for any other."""


def error_named(name: str, message: str | None) -> A2AError:
    """Our error of the same name: both have the names of the specification."""
    return _ERROR_CLASSES.get(name, A2AError)(message)
