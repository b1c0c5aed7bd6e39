"""The behaviour of every benchmarked agent, in plain Python so that each peer's interpreter can import it.

An ordinary message is echoed; `stream N` requests N chunks of twenty bytes. load.py checks both responses.
"""

import os

STORAGE = os.environ.get("BENCH_STORAGE", "memory")
DATABASE = os.environ.get("BENCH_DATABASE", "")
#: The address of the database server, for a storage that has one.
URL = os.environ.get("BENCH_URL", "")
#: How long the handler waits, in seconds, as for a model or another service.
WAIT_S = int(os.environ.get("BENCH_WAIT_MS", "0")) / 1000
GRPC_PORT = int(os.environ.get("BENCH_GRPC_PORT", "0"))


def echo(text: str) -> str:
    return f"Echo: {text}"


def chunks(text: str) -> list[str]:
    """Return the chunks that a `stream N` message requests; none for any other message."""
    command, _, count = text.partition(" ")
    if command != "stream":
        return []
    return [f"chunk {index:08d} text " for index in range(int(count))]
