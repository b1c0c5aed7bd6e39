"""The PostgreSQL engine.

`engine` is the public class; `store` writes; `queries` are its methods that read; `notifications` hears of other
processes; `retention` deletes; `connection` connects and `schema` makes the tables. All SQL is in `queries.sql` and
`migrations/`.
"""

from errands.engines.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
