"""The service that tools call is the one of their own tests."""

from tests.unit.tools.conftest import running, service

__all__ = ["running", "service"]
