"""The console: the pages at `/console` and `/chat`, on which people see an agent at work and talk to it."""
