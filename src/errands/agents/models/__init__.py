"""Models: who answers, behind one port (`base`)."""
