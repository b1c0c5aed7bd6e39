"""The SQLite engine. Its files: `engine` is what users meet, `writer` and `readers` are its threads, `changes`, `jobs`
and `reading` what they do, `queries.sql` and `migrations/` all of its SQL."""

from errands.engines.sqlite.engine import SQLiteEngine

__all__ = ["SQLiteEngine"]
