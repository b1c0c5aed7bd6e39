"""The caller as the official SDK knows one. Both generations have the same classes for it."""

from __future__ import annotations

from a2a.auth.user import UnauthenticatedUser, User

from errands.runtime.executor.call import ServerCallContext


class Caller(User):
    """Whom middleware has named as the owner."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


def caller_of(call: ServerCallContext) -> User:
    return Caller(call.user.user_name) if call.user.is_authenticated else UnauthenticatedUser()
