"""The loop: an agent that is written down, at work on a task."""
