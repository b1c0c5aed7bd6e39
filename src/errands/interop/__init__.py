"""Executors and agent cards written against the official `a2a` package, run by errands as they are.

The package is an extra and is never imported before somebody hands over an object of it.
"""

from errands.interop.adapting import Executor, adapt, is_executor_class
from errands.interop.cards import Card, adapt_card

__all__ = ["Card", "Executor", "adapt", "adapt_card", "is_executor_class"]
