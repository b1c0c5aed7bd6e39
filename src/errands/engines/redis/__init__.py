"""The Redis engine: one Redis or Valkey server, or one slot of a cluster, shared by any number of machines.

`engine` is the public class; `store` writes; `queries` are its methods that read; `notifications` hears of other
processes; `retention` deletes; `connection` connects; `schema` says what is stored. The scripts that run on the server
are in `lua/`.
"""

from errands.engines.redis.engine import RedisEngine

__all__ = ["RedisEngine"]
