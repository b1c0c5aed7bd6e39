"""Parts of a2a-sdk 0.3.26 in the words of the conversation, and back."""

import json

from a2a.types import DataPart, FilePart, FileWithBytes, FileWithUri, Part, TextPart
from conversation import data_part, text_part


def sdk_part(part: dict[str, str]) -> Part:
    if "text" in part:
        return Part(root=TextPart(text=part["text"]))
    if "data" in part:
        return Part(root=DataPart(data=json.loads(part["data"])))
    named = {"name": part["name"], "mime_type": part["type"]}
    file = FileWithBytes(bytes=part["raw"], **named) if "raw" in part else FileWithUri(uri=part["url"], **named)
    return Part(root=FilePart(file=file))


def plain_part(part: Part) -> dict[str, str]:
    content = part.root
    if isinstance(content, TextPart):
        return text_part(content.text)
    if isinstance(content, DataPart):
        return data_part(content.data)
    named = {"name": content.file.name or "", "type": content.file.mime_type or ""}
    if isinstance(content.file, FileWithBytes):
        return {"raw": content.file.bytes, **named}
    return {"url": content.file.uri, **named}


def text_of(parts: list[Part]) -> str:
    return "".join(part.root.text for part in parts if isinstance(part.root, TextPart))
