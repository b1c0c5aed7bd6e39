"""The values that expressions see: converted for the engine once, and only as far as an expression names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from errands.policy.cel.environment import environment
from errands.policy.cel.scopes import Scope
from errands.policy.cel.tokens import CAPABILITIES, PRESENT, Needs
from errands.policy.cel.values import Json, SeenContext, as_seen, is_cut, longest


class Variables:
    """One consistent set of values, for any number of expressions.

    `context` is taken as it is, because `errands.policy.context` keeps it plain; everything else is made plain here.
    """

    def __init__(self, context: Mapping[str, Json] | None = None, **values: Any) -> None:
        self._context = context
        self._values = {name: as_seen(value) for name, value in values.items()}
        #: What is not seen as it is, and parts of the context in which something is not.
        self.too_large = frozenset(name for name, value in values.items() if is_cut(value))
        self.cut = context.cut if isinstance(context, SeenContext) else frozenset[tuple[str, ...]]()
        self._longest: dict[tuple[Scope, Needs], int] = {}
        self._sizes: dict[tuple[Scope, Needs, frozenset[str]], int] = {}
        self._activations: dict[tuple[Scope, str, Needs], Any] = {}

    def activation(self, scope: Scope, now: str, needs: Needs) -> Any:
        """The engine's form of these values; expressions that need the same parts of the context share one."""
        key = (scope, now, needs)
        found = self._activations.get(key)
        if found is None:
            found = environment(scope).Activation(self._visible(scope, now, needs))
            self._activations[key] = found
        return found

    def longest(self, scope: Scope, needs: Needs) -> int:
        """The number of items of the longest list or map that an expression may see."""
        key = (scope, needs)
        if key not in self._longest:
            self._longest[key] = longest(self._visible(scope, "", needs))
        return self._longest[key]

    def size(self, scope: Scope, needs: Needs, names: frozenset[str]) -> int:
        """The bytes, as JSON, of all that an expression looks at."""
        key = (scope, needs, names)
        if key not in self._sizes:
            self._sizes[key] = len(msgspec.json.encode(self.named(scope, needs, names)))
        return self._sizes[key]

    def named(
        self, scope: Scope, needs: Needs, names: frozenset[str]
    ) -> tuple[dict[str, Json] | None, dict[str, Json]]:
        """What an expression with these names looks at: of the context, and beside it."""
        context, values = self._seen(scope, needs)
        return context, {name: value for name, value in values.items() if name in names}

    def _seen(self, scope: Scope, needs: Needs) -> tuple[dict[str, Json] | None, dict[str, Json]]:
        values = {name: value for name, value in self._values.items() if name in scope.variables}
        has_context = self._context is not None and "context" in scope.variables
        return project(self._context or {}, needs) if has_context else None, values

    def _visible(self, scope: Scope, now: str, needs: Needs) -> dict[str, Json]:
        context, visible = self._seen(scope, needs)
        if "now" in scope.variables:
            visible["now"] = now
        if "event" in scope.variables:
            visible[PRESENT] = dict.fromkeys(visible, True)
        if context is not None:
            visible["context"] = context
        return visible


def project(context: Mapping[str, Json], needs: Needs) -> dict[str, Json]:
    """The part of the context that an expression can touch, with `cap` when it says so."""
    full, short = CAPABILITIES
    capabilities = context.get(full, {})
    if needs.whole:
        return {**context, **({short: capabilities} if needs.cap else {})}
    seen = {name: context[name] for name in needs.sections if name in context}
    if short in needs.sections:
        seen[short] = capabilities
    for section, name in needs.records:
        if section not in needs.sections:
            record = {name: capabilities[name]} if name in capabilities else {}
            seen[section] = {**seen.get(section, {}), **record}
    return seen
