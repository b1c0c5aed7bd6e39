"""The functions of what a server or a document offers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

import msgspec

from errands.agents.manifests.documents import Capability
from errands.agents.manifests.functions import Function
from errands.agents.manifests.names import distinct
from errands.agents.tools.base import Discovered
from errands.policy.steps import CAPABILITY_PHASES, capability_name

logger = logging.getLogger(__name__)


def discovered_functions(
    function: Function, items: Sequence[Discovered], capability: Capability, taken: Collection[str]
) -> list[Function]:
    """One function for each thing that was found, in place of the one that stands for all of them.

    Names in `taken` belong to others.
    """
    functions: dict[str, Function] = {}
    for item in items:
        made = _made(function, item, capability.include)
        if made.name in functions or made.name in taken:
            made = msgspec.structs.replace(made, name=distinct(made.name, item.name))
        functions[made.name] = made
    return list(functions.values())


def _made(function: Function, item: Discovered, include: Collection[str] | None) -> Function:
    # What the manifest says about a parameter wins, for example a default or a better description.
    declared = {name: function.declared.get(name, schema) for name, schema in item.parameters.items()}
    names = {capability_name(name) for name in (function.action, item.name) if name}
    is_included = include is None or not names.isdisjoint(map(capability_name, include))
    return msgspec.structs.replace(
        function,
        name=function.discovered_name(item.name),
        description=item.description,
        declared=declared,
        bindings={name: source for name, source in function.bindings.items() if name in declared},
        offered=function.offered and is_included,
        discovers=False,
        operation=item.name,
    )


def described(function: Function, items: Sequence[Discovered]) -> Function:
    """A function that is one thing of a server has the parameters that it has there; others stay as they are."""
    if not items:
        return function
    [item] = items
    return msgspec.structs.replace(function, declared={**item.parameters, **function.declared})


def note_unknown(ref: str, capability: Capability, functions: Iterable[Function]) -> None:
    """Logs what `include` names and nothing that was discovered has: the model is not offered it."""
    known = _names([function for function in functions if function.ref == ref])
    for name in sorted(set(capability.include or ())):
        if capability_name(name) not in known:
            logger.warning("%s: include names %r, and there is no such thing", ref, name)


def unapplied(ref: str, capability: Capability, functions: Iterable[Function]) -> list[str]:
    """Return the rules of a capability that fit nothing that was discovered: what they guard is unknown."""
    found = [function for function in functions if function.ref == ref]
    steps = [step for phase in CAPABILITY_PHASES for step in getattr(capability, phase.value) or []]
    matches = {
        step.match for step in steps if step.match is not None and capability_name(step.match) not in _names(found)
    }
    bound = (capability.bindings or {}).keys() - {name for one in found for name in one.declared}
    return [f"a step has match {name!r}, and there is no such operation" for name in sorted(matches)] + [
        f"the binding {name!r} fits no parameter" for name in sorted(bound)
    ]


def _names(functions: Iterable[Function]) -> set[str]:
    """The names that `match` and `include` may mean."""
    return {capability_name(name) for one in functions for name in (one.action, one.operation) if name}
