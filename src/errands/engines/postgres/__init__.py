"""The PostgreSQL engine. Its files: `engine` is what users meet; `writer` commits and `readers` read; `changes`,
`jobs`, `reading` and `retention` are what they do; `watching` hears of other processes; `schema` looks after the
tables; `queries.sql` and `migrations/` are all of its SQL."""

from errands.engines.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
