"""The caller in the SDK's classes, which are the same in both generations."""

from __future__ import annotations

from a2a.auth.user import UnauthenticatedUser, User

from errands.runtime.executor import ServerCallContext


class SdkUser(User):
    """The owner that middleware has set."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


def caller_of(call: ServerCallContext) -> User:
    return SdkUser(call.user.user_name) if call.user.is_authenticated else UnauthenticatedUser()
