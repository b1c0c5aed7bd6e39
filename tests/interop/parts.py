"""errands' parts in the words of the conversation, and back."""

from __future__ import annotations

import base64
import json

from msgspec import UNSET

from errands import Part
from tests.interop.peers.conversation import data_part, raw_part, text_part, url_part


def plain_part(part: Part) -> dict[str, str]:
    if part.text is not None:
        return text_part(part.text)
    if part.data is not UNSET:
        return data_part(part.data)
    name, media_type = part.filename or "", part.media_type or ""
    if part.raw is not None:
        return raw_part(part.raw, name, media_type)
    return url_part(part.url or "", name, media_type)


def errands_part(part: dict[str, str]) -> Part:
    if "text" in part:
        return Part(text=part["text"])
    if "data" in part:
        return Part(data=json.loads(part["data"]))
    if "raw" in part:
        return Part(raw=base64.b64decode(part["raw"]), filename=part["name"], media_type=part["type"])
    return Part(url=part["url"], filename=part["name"], media_type=part["type"])
