"""Storage URLs as people may see them: in messages, in what the server says at its start, in logs."""

from __future__ import annotations

import re

#: Up to the last `@`, so that a password which should have been percent-encoded is hidden, too.
_IN_ADDRESS = re.compile(r"(//[^/:@]*):.*@")
_IN_OPTIONS = re.compile(r"([?&]password=)[^&]*", re.IGNORECASE)


def without_password(url: str) -> str:
    """The address with stars where its password was."""
    return _IN_OPTIONS.sub(r"\1***", _IN_ADDRESS.sub(r"\1:***@", url))
