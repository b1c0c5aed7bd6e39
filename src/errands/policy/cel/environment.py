"""The engine: one environment per scope. The only module that imports it, and it does so when first needed."""

from __future__ import annotations

import importlib
from functools import lru_cache, partial
from typing import Any

from errands.errors import ConfigurationError
from errands.policy.cel.scopes import ALIASES, AWAITED, Scope
from errands.policy.cel.session import awaited
from errands.policy.cel.tokens import PRESENT
from errands.policy.cel.values import Json, arguments_plain, normalise

#: The types that awaited functions return; the others return any JSON value.
_RETURNS = {"review": "BOOL", "mount.read": "STRING", "mount.write": "STRING"}


@lru_cache(maxsize=1)
def engine() -> Any:
    """The engine's module. Raises `ConfigurationError` when it is not installed."""
    try:
        return importlib.import_module("cel_expr_python.cel")
    except ImportError:
        raise ConfigurationError(
            "policies, guardrails and manifests need the expression language: pip install 'errands[policy]'"
        ) from None


@lru_cache(maxsize=256)
def environment(scope: Scope) -> Any:
    """The engine's environment in which exactly the names of `scope` exist."""
    cel = engine()
    variables = dict.fromkeys(scope.variables, cel.Type.DYN)
    if "now" in variables:
        variables["now"] = cel.Type.STRING
    if "event" in variables:
        variables[PRESENT] = cel.Type.DYN
    return cel.NewEnv(
        variables=variables,
        functions=_functions(scope),
        container=cel.ExpressionContainer(aliases={alias: ALIASES[alias] for alias in scope.aliases}),
    )


def _functions(scope: Scope) -> list[Any]:
    cel = engine()
    # A parameter of type DYN never matches at run time; one of type Any takes every value.
    anything = cel.Type("google.protobuf.Any")
    declared = [
        _declare("put", [anything] * 3, cel.Type.DYN, _put, member=True),
        _declare("last", [anything], cel.Type.DYN, _last, member=True),
    ]
    for name in sorted(scope.functions):
        parameters = [cel.Type.STRING] * AWAITED[name]
        returns = getattr(cel.Type, _RETURNS.get(name, "DYN"))
        declared.append(_declare(name, parameters, returns, partial(awaited, name)))
    return declared + [
        _declare(name, [anything], cel.Type.DYN, partial(_capability, name)) for name in sorted(scope.capabilities)
    ]


def _declare(name: str, parameters: list[Any], returns: Any, call: Any, *, member: bool = False) -> Any:
    cel = engine()
    overload = cel.Overload(f"errands_{name}", return_type=returns, parameters=parameters, is_member=member, impl=call)
    return cel.FunctionDecl(name, [overload])


def _put(target: Any, key: Any, value: Any) -> Json:
    if not isinstance(target, dict) or not isinstance(key, str):
        raise TypeError("put() is for a map, a string and a value")
    return normalise(arguments_plain({**target, key: value}))


def _last(target: Any) -> Json:
    if not isinstance(target, list):
        raise TypeError("last() is for a list")
    if not target:
        raise IndexError("last() of an empty list; ask for its size() first")
    return normalise(arguments_plain(target[-1]))


def _capability(name: str, arguments: Any) -> Json:
    if not isinstance(arguments, dict):
        raise TypeError(f"{name}() takes one map of arguments, such as {name}({{'key': 'value'}})")
    return awaited(name, arguments)
