"""The scopes: which names an expression may use, by the place where it is written.

A name that is not in the scope is refused when the expression is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from errands.errors import ConfigurationError

#: Short names of variables.
ALIASES = {"c": "context", "i": "input", "o": "output"}

#: Functions whose results an expression waits for, with the number of their arguments.
AWAITED = {"review": 1, "mount.read": 1, "mount.write": 2, "file": 1}

_MAX_SOURCE = 16_000
#: A script comes from a model and has no reason to be long.
_MAX_SCRIPT = 4_000

#: Reserved words, functions and macros of the language.
_RESERVED = frozenset(
    """
    as break const continue else false for function if import in let loop null package namespace return true var void
    while all bool bytes double duration dyn exists exists_one file filter has int list map matches review size string
    timestamp type uint
    """.split()  # noqa: SIM905 - it reads as a list of words
)


class NameScope(msgspec.Struct, frozen=True, kw_only=True):
    """The names of one place. `name` completes the sentence "… is not available in"."""

    name: str
    variables: frozenset[str] = frozenset()
    #: Those of `ALIASES` that may be used here.
    aliases: frozenset[str] = frozenset()
    #: Those of `AWAITED` that may be called here.
    functions: frozenset[str] = frozenset()
    #: Those of `variables` that are an input or output of the agent: a map with a `message`.
    task_ios: frozenset[str] = frozenset()
    #: Functions of one map: what a script may call.
    capabilities: frozenset[str] = frozenset()
    #: Variables, or fields such as `message.role`, that are always one of a few words.
    choices: frozenset[tuple[str, frozenset[str]]] = frozenset()
    max_source: int = _MAX_SOURCE
    #: Whether the values of expressions decide something, so that these must see all of every value.
    decides: bool = True

    def without_calls(self) -> NameScope:
        """Return the scope without functions that an expression would wait for: for conditions and templates."""
        return msgspec.structs.replace(self, functions=frozenset())

    def describe(self) -> str:
        """Return the names as text for messages."""
        short = {ALIASES[alias]: alias for alias in self.aliases}
        names = [f"{name} ({short[name]})" if name in short else name for name in sorted(self.variables)]
        calls = [f"{name}()" for name in sorted(self.functions | self.capabilities)]
        return ", ".join([*names, *calls]) or "nothing"


def _scope(
    name: str, variables: str, *, aliases: str = "c", functions: Iterable[str] = (), task_ios: str = ""
) -> NameScope:
    return NameScope(
        name=name,
        variables=frozenset(variables.split()),
        aliases=frozenset(aliases.split()),
        functions=frozenset(functions),
        task_ios=frozenset(task_ios.split()),
    )


BEFORE = _scope("a before step", "context input now event", aliases="c i", functions=["review"])
AFTER = _scope("an after step", "context input output now event", aliases="c i o", functions=["review"])
GUARDRAIL_BEFORE = _scope(
    "a guardrail before step", "context input now", aliases="c i", functions=["review"], task_ios="input"
)
GUARDRAIL_AFTER = _scope(
    "a guardrail after step", "context output now", aliases="c o", functions=["review"], task_ios="output"
)
BINDING = _scope("a binding", "context runtime now")
BINDING_WITH_MOUNT = _scope("a binding", "context runtime now mount")
TOOL = _scope("a CEL tool of an agent without mount", "context input now runtime", aliases="c i", functions=["review"])
TOOL_WITH_MOUNT = msgspec.structs.replace(
    TOOL, name="a CEL tool", functions=frozenset({"review", "mount.read", "mount.write"})
)
PROMPT = msgspec.structs.replace(_scope("a prompt", "context runtime now"), decides=False)
EXPOSES = _scope("an exposed value", "context input output now runtime", task_ios="input output")
#: Addresses, headers and bodies of tools. They are templates: see `errands.policy.template`.
REQUEST = _scope("a tool's request", "context runtime now parameters settings session agent mount auth")

#: The function by which a model runs a script. A script cannot run another.
SCRIPT = "run_script"


def binding(*, mount: bool) -> NameScope:
    """Return the scope of the bindings of an agent with or without a mount."""
    return BINDING_WITH_MOUNT if mount else BINDING


def is_script_name(name: str) -> bool:
    """Return whether a script can call a capability by this name."""
    return name.isascii() and name.isidentifier() and name not in _RESERVED and name != SCRIPT


def script(capabilities: Iterable[str], *, mount: bool = False) -> NameScope:
    """Return the scope of a model's script: its capabilities, `file()` if there is a mount, and no variables."""
    names = frozenset(capabilities)
    for name in sorted(names):
        if not is_script_name(name):
            raise ConfigurationError(
                f"a script cannot call the capability {name!r}: the name is reserved or not an identifier; "
                "rename the capability or do not offer scripts"
            )
    functions = frozenset({"file"}) if mount else frozenset[str]()
    return NameScope(name="a capability script", functions=functions, capabilities=names, max_source=_MAX_SCRIPT)
