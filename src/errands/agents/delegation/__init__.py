"""Delegation: an agent hands work to another, behind one port (`base`)."""
