"""Names: of resources, and of functions as the model calls them and as CEL finds them on the context."""

from __future__ import annotations

import hashlib
import re

from errands.agents.manifests.findings import Place, quoted
from errands.policy.steps import capability_name

#: Model providers take no longer function names.
MAX_FUNCTION_NAME = 64

#: What CEL keeps for itself.
CEL_RESERVED = frozenset(
    {
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in"),
        *("let", "loop", "namespace", "null", "package", "return", "true", "var", "void", "while"),
    }
)

_RESOURCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_FOREIGN = re.compile(r"[^A-Za-z0-9_]")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def function_name(ref: str, action: str | None = None) -> str:
    """What the model calls; `action` is given for tools that have several."""
    return capability_name(ref if action is None else f"{ref}_{action}")


def fitting(name: str) -> str:
    """A name that nobody checked, in characters and of a length that models take; what was too long stays apart."""
    plain = _FOREIGN.sub("_", name)
    return plain if len(plain) <= MAX_FUNCTION_NAME else distinct(plain, name)


def distinct(plain: str, original: str) -> str:
    """The same name marked by what it was made of, so that two originals do not become one."""
    mark = hashlib.sha256(original.encode()).hexdigest()[:8]
    return f"{plain[: MAX_FUNCTION_NAME - len(mark) - 1]}_{mark}"


def check_resource_name(name: str, place: Place) -> None:
    # Names become parts of paths below a mount.
    if not _RESOURCE.fullmatch(name) or ".." in name:
        place.error(
            f"is {quoted(name)}", "use up to 100 of a-z, A-Z, 0-9, '-', '_' and '.', and begin with a letter or a digit"
        )


def check_function_name(name: str, place: Place) -> None:
    if name == "_meta":
        place.error("becomes the function _meta, which the context keeps for itself", "call it something else")
    elif not _IDENTIFIER.fullmatch(name):
        problem = f"becomes the function {quoted(name)}, which neither models nor CEL can write"
        place.error(problem, "use letters, digits, '-' and '_' only, and begin with a letter")
    elif name in CEL_RESERVED:
        place.error(f"becomes the function {name}, a reserved word of CEL", "call it something else")
    elif len(name) > MAX_FUNCTION_NAME:
        problem = f"becomes the function {quoted(name)} of {len(name)} characters; models take {MAX_FUNCTION_NAME}"
        place.error(problem, "use shorter names")
