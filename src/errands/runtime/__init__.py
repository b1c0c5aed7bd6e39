"""What runs agents: the task manager, workers and their context. Knows the engine port, no engine and no wire."""
