"""Storage URLs as people may see them: in messages, in what the server says at its start, in logs."""

from __future__ import annotations

import re

#: Up to the last `@`, so that a password which should have been percent-encoded is hidden, too.
_IN_ADDRESS = re.compile(r"(//[^/:@]*):.*@")
#: Where the two slashes were forgotten, nobody knows what is what.
_IN_NO_ADDRESS = re.compile(r"^((?:[a-z+]*:/*)?).*@", re.IGNORECASE)
_IN_OPTIONS = re.compile(r"([?&]password=)[^&]*", re.IGNORECASE)


def without_password(url: str) -> str:
    """The address with stars where its password was."""
    if "//" not in url:
        return _IN_NO_ADDRESS.sub(r"\1***@", url)
    return _IN_OPTIONS.sub(r"\1***", _IN_ADDRESS.sub(r"\1:***@", url))
