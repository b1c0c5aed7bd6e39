"""Keeping secrets out of everything that is told, stored or shown."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

from errands.policy.cel.values import Json

#: What stands in place of a secret.
HIDDEN = "[secret]"


class Secrets:
    """Secrets to be hidden. New ones, such as tokens that were just fetched, can be added."""

    def __init__(self, values: Iterable[Json] = ()) -> None:
        self._forms: list[str] = []
        for value in values:
            self.add(value)

    def add(self, value: Json) -> None:
        """A secret, or all texts and numbers inside of it."""
        if isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                self.add(item)
        elif value not in (None, "") and not isinstance(value, bool):
            forms = {*self._forms, *_forms(str(value))}
            # One may be a part of another.
            self._forms = sorted(forms, key=len, reverse=True)

    def hide(self, value: Json) -> Json:
        """The same without secrets, in texts and in keys at any depth."""
        if isinstance(value, str):
            return self.hide_in(value)
        if isinstance(value, dict | list) and not self._may_be_in(value):
            return value
        return self._hidden(value)

    def _hidden(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.hide_in(value)
        if isinstance(value, dict):
            return {self.hide_in(str(key)): self._hidden(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._hidden(item) for item in value]
        return value

    def _may_be_in(self, value: Json) -> bool:
        """Look at it as one JSON text: an answer may have a million values, and seldom a secret."""
        try:
            text = msgspec.json.encode(value)
        except (TypeError, UnicodeEncodeError):
            return True
        return any(msgspec.json.encode(form)[1:-1] in text for form in self._forms)

    def hide_in(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        return text

    def are_in(self, value: Any) -> bool:
        return bool(self.hide(value) != value)


def _forms(secret: str) -> set[str]:
    """A secret as it looks in texts, in addresses, in JSON, and as a whole in base64."""
    raw = secret.encode("utf-8", "replace")
    escaped = msgspec.json.encode(raw.decode()).decode()[1:-1]
    quoted = {quote(raw), quote(raw, safe=""), quote_plus(raw)}
    return {secret, *quoted, escaped, repr(secret)[1:-1], base64.b64encode(raw).decode()}
