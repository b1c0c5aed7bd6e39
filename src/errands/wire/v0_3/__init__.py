"""A2A 0.3 as JSON: the same operations in the older spelling, over JSON-RPC and HTTP+JSON, and the older agent card."""
