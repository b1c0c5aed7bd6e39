"""The Redis engine: one Redis or Valkey server, or one slot of a cluster, shared by any number of machines."""

from errands.engines.redis.engine import RedisEngine

__all__ = ["RedisEngine"]
