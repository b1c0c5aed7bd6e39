"""Models that answer for agents, behind one port (`base`)."""
