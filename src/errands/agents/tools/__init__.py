"""Tools: what an agent can do, behind one port (`base`)."""
