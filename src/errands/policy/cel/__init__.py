"""The expression language: `compile(scope, source)` and `evaluate(program, variables, session)`.

scopes.py       the names that an expression may use, by the place where it is written
syntax.py       tokens and paths: what can be known from the text of an expression
program.py      compiling, and one evaluation
session.py      calls that an expression makes and waits for, and the errors of expressions
evaluators.py   evaluating: calls are performed, long evaluations run in child processes
child.py        such a process
values.py       values on their way in and out
"""

from errands.policy.cel.evaluators import Perform, evaluate, finish
from errands.policy.cel.program import Program, Variables, compile, run  # noqa: A004 - the word for it
from errands.policy.cel.scopes import NameScope
from errands.policy.cel.session import Call, CallFailed, CelError, Session, Suspended

__all__ = [
    "Call",
    "CallFailed",
    "CelError",
    "NameScope",
    "Perform",
    "Program",
    "Session",
    "Suspended",
    "Variables",
    "compile",
    "evaluate",
    "finish",
    "run",
]
