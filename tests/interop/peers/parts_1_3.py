"""Parts of a2a-sdk 1.3.0 in the words of the conversation, and back."""

import base64
import json
from typing import Any

from a2a.types import Part
from conversation import data_part, raw_part, text_part, url_part
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value


def sdk_part(part: dict[str, str]) -> Part:
    named = {"filename": part.get("name", ""), "media_type": part.get("type", "")}
    if "text" in part:
        return Part(text=part["text"])
    if "data" in part:
        return Part(data=ParseDict(json.loads(part["data"]), Value()))
    if "raw" in part:
        return Part(raw=base64.b64decode(part["raw"]), **named)
    return Part(url=part["url"], **named)


def plain_part(part: Part) -> dict[str, str]:
    kind = part.WhichOneof("content")
    if kind == "text":
        return text_part(part.text)
    if kind == "data":
        return data_part(MessageToDict(part.data))
    if kind == "raw":
        return raw_part(part.raw, part.filename, part.media_type)
    return url_part(part.url, part.filename, part.media_type)


def text_of(parts: Any) -> str:
    return "".join(part.text for part in parts)
