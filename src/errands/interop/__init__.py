"""Runs executors, request context builders and agent cards of the official `a2a` package unmodified.

The package is an extra. It is not imported before an object of it is passed to errands.
"""

from errands.interop.executors import BuilderLike, CardLike, ExecutorLike, adapt, adapt_card, is_executor_class

__all__ = ["BuilderLike", "CardLike", "ExecutorLike", "adapt", "adapt_card", "is_executor_class"]
