"""The expression language behind one small interface: `compile(scope, source)` and `evaluate(program, variables)`.

The engine is cel-expr-python (extra `policy`); only `environment.py` and `values.py` know it.
"""

from errands.policy.cel.errors import CallFailed, CelError, Suspended
from errands.policy.cel.evaluating import Perform, evaluate, finish
from errands.policy.cel.program import Program, compile, run  # noqa: A004 - the word for it
from errands.policy.cel.scopes import Scope
from errands.policy.cel.session import Call, Session
from errands.policy.cel.variables import Variables

__all__ = [
    "Call",
    "CallFailed",
    "CelError",
    "Perform",
    "Program",
    "Scope",
    "Session",
    "Suspended",
    "Variables",
    "compile",
    "evaluate",
    "finish",
    "run",
]
