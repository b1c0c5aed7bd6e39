"""The command line. It uses only what users have: the server, the client, the store and their settings."""

from errands.cli.main import main

__all__ = ["main"]
