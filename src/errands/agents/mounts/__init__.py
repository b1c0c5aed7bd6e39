"""Mounts: where an agent has its files, behind one port (`base`)."""
