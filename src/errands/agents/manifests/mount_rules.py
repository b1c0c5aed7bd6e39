"""What a mount must be like beyond the form of its fields."""

from __future__ import annotations

import re

from errands.agents.manifests.documents import Mount
from errands.agents.manifests.findings import Place, quoted
from errands.agents.manifests.names import check_resource_name

BACKENDS = ("local", "gcs", "s3")
_TOKENS = ("namespace", "agent", "task")


def check_mount(mount: Mount, place: Place) -> None:
    check_resource_name(mount.name, place / "name")
    found = [name for name in BACKENDS if getattr(mount, name) is not None]
    if len(found) != 1:
        problem = f"has the backends {' and '.join(found)}" if found else "has no backend"
        place.error(problem, f"write exactly one of {', '.join(BACKENDS)}")
    for scope in mount.path_prefixes.__struct_fields__:
        _check_prefix(getattr(mount.path_prefixes, scope), scope, place / "path_prefixes" / scope)


def _check_prefix(prefix: str, scope: str, place: Place) -> None:
    for token in re.findall(r"\{([^}]*)\}?", prefix):
        if token not in _TOKENS:
            place.error(f"has the token {quoted('{' + token + '}')}", "use {namespace}, {agent} and {task}")
    if ".." in prefix.split("/"):
        place.error("leads out of the mount with ..", "write the path without ..")
    if scope in _TOKENS and f"{{{scope}}}" not in prefix:
        place.warn(f"lacks {{{scope}}}, so every {scope} has the same files", f"add {{{scope}}}")
