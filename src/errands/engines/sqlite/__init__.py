"""The SQLite engine.

`engine` is the public class; `store` is the thread that writes; `queries` are its methods that read; `retention`
deletes; `connection` opens the file and `schema` makes its tables. All SQL is in `queries.sql` and `migrations/`.
"""

from errands.engines.sqlite.engine import SQLiteEngine

__all__ = ["SQLiteEngine"]
