"""A2A 0.3 as JSON: the same operations in the older spelling, over JSON-RPC and HTTP+JSON, and the older agent card."""

from errands.wire.v0_3.jsonrpc import JSONRPC
from errands.wire.v0_3.rest import REST, REST_PLAIN

__all__ = ["JSONRPC", "REST", "REST_PLAIN"]
