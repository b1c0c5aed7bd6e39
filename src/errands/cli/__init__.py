"""The command line: one file per command. It uses what users have, the server, the client and their settings."""

from errands.cli.app import main

__all__ = ["main"]
