"""Executors, request context builders and agent cards of the official `a2a` package, run by errands as they are.

The package is an extra and is never imported before somebody hands over an object of it.
"""

from errands.interop.adapting import Builder, Executor, adapt, is_executor_class
from errands.interop.cards import Card, adapt_card

__all__ = ["Builder", "Card", "Executor", "adapt", "adapt_card", "is_executor_class"]
