"""Paths below a mount: what one may look like. Pure, and the same for every backend and operating system.

A path that passes is a row of names, none of which can mean anything but itself: no way up, no root, no drive, no
device, no character that some file system reads as more than a part of a name.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from errands.agents.mounts.base import MountError

#: UTF-8 bytes. Object stores take keys of 1,024 bytes, file systems names of 255; both keep room for what is added.
MAX_PATH = 700
MAX_NAME = 200

_FORBIDDEN = re.compile(r"""[\x00-\x1f\x7f\\:*?"<>|]""")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(?:\..*)?", re.IGNORECASE)
_SHOWN = 80


def names(path: str) -> tuple[str, ...]:
    """The names that lead from the mount to a file. Raises `MountError`; its message may be shown to the model."""
    if not path:
        raise MountError("the path is empty; write one such as notes/today.txt")
    if path.startswith("/"):
        raise _refused(path, "is absolute; write it without the first /, it is below the mount anyway")
    if path.endswith("/"):
        raise _refused(path, "is that of a folder; name a file in it")
    if len(path.encode("utf-8", "replace")) > MAX_PATH:
        raise _refused(path, f"has more than {MAX_PATH} bytes")
    found = tuple(name for name in path.split("/") if name != ".")
    if not found:
        raise _refused(path, "names no file")
    for name in found:
        if problem := wrong(name):
            raise _refused(path, problem)
    return found


def wrong(name: str) -> str:
    """Why this cannot be one name in a path; empty if it can."""
    if name == "..":
        return "leads out of the mount with .."
    if not name:
        return "has two / in a row"
    if found := _FORBIDDEN.search(name):
        return f"has the character {found[0]!r}, which paths cannot have"
    if name[-1] in ". ":
        return "has a name that ends with a dot or a space"
    if _DEVICE.fullmatch(name):
        return f"has the name {name[:_SHOWN]}, which is that of a device"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is no valid Unicode"
    return f"has a name of more than {MAX_NAME} bytes" if size > MAX_NAME else ""


def one_name(value: str) -> str:
    """Any text as exactly one name, and different texts as different names. Raises `MountError` if it is too long."""
    name = quote(value, safe=" ", errors="surrogatepass")
    if wrong(name):
        # What quoting leaves alone: dots, spaces at the end, and the names of devices.
        name = "".join(f"%{byte:02X}" for byte in value.encode("utf-8", "surrogatepass")) or "%"
    if problem := wrong(name):
        raise MountError(f"the name {value[:_SHOWN]!r} {problem}")
    return name


def _refused(path: str, problem: str) -> MountError:
    shown = path if len(path) <= _SHOWN else f"{path[:_SHOWN]}…"
    return MountError(f"the path {shown!r} {problem}")
