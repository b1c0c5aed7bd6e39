"""What protobuf's JSON allows beside the usual form is read in requests and in answers, of both versions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from errands.errors import InvalidParamsError
from errands.model.core import Part
from errands.model.requests import ListTasksRequest, SendMessageConfiguration, SendMessageRequest
from errands.operations import OPERATIONS
from errands.wire import v1_0
from errands.wire.v0_3 import JSONRPC

#: Texts that mean the bytes, of which the first is the usual one.
SPELLINGS = [
    (b"\xfb\xff\xbf\xfe", ["+/+//g==", "-_-__g==", "-_-__g", "+/+//g"]),
    (b"abcd", ["YWJjZA==", "YWJjZA=", "YWJjZA"]),
    (b"", [""]),
]


@pytest.mark.parametrize(("content", "text"), [(content, text) for content, texts in SPELLINGS for text in texts])
def test_bytes_may_be_url_safe_and_without_padding(content: bytes, text: str) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"raw": text}]}
    body = msgspec.json.encode({"message": message})
    assert v1_0.read_body(SendMessageRequest, body).message.parts == [Part(raw=content)]
    assert v1_0.read_answer(Part, msgspec.json.encode({"raw": text})) == Part(raw=content)
    old = {"messageId": "m", "role": "user", "parts": [{"kind": "file", "file": {"bytes": text}}]}
    read = JSONRPC.read_request(OPERATIONS["SendMessage"], msgspec.json.encode({"message": old}))
    assert read.message.parts == [Part(raw=content)]


@pytest.mark.parametrize("text", ["###", "YWJjZ", "YW Jj", "YWJj\n", "\u00e9"])
def test_what_is_not_base64_is_refused(text: str) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"raw": text}]}
    with pytest.raises(InvalidParamsError, match=r"base64.*message\.parts\[0\]\.raw"):
        v1_0.read_body(SendMessageRequest, msgspec.json.encode({"message": message}))


@pytest.mark.parametrize("number", [5, 5.0, "5"])
def test_a_whole_number_may_be_a_string_or_have_a_fraction_of_zero(number: Any) -> None:
    read = v1_0.read_body(SendMessageConfiguration, msgspec.json.encode({"historyLength": number}))
    assert read.history_length == 5
    assert v1_0.read_body(ListTasksRequest, msgspec.json.encode({"pageSize": number})).page_size == 5


@pytest.mark.parametrize("number", ["", "5.5", 5.5, "1" * 5_000, "\u0663", True, [5], 1e300])
def test_what_is_not_a_whole_number_is_refused(number: Any) -> None:
    with pytest.raises(InvalidParamsError, match="historyLength"):
        v1_0.read_body(SendMessageConfiguration, msgspec.json.encode({"historyLength": number}))
