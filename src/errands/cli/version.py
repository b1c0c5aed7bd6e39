"""`errands version`."""

from __future__ import annotations

import platform

from errands.cli.terminal import out
from errands.version import __version__


def version() -> None:
    """Print the version of errands.

    Example:

        errands version
    """
    out().print(f"errands {__version__} (Python {platform.python_version()})")
