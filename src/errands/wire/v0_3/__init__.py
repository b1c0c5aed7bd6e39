"""A2A 0.3 as JSON: the same operations in the older spelling, over JSON-RPC and HTTP+JSON, and the older agent card."""

from errands.wire.v0_3.jsonrpc import JSONRPC, JSONRPC_A2AKIT
from errands.wire.v0_3.rest import REST, REST_A2AKIT, REST_ONCE, REST_PLAIN

__all__ = ["JSONRPC", "JSONRPC_A2AKIT", "REST", "REST_A2AKIT", "REST_ONCE", "REST_PLAIN"]
