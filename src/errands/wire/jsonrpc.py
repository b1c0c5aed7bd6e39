"""The JSON-RPC 2.0 envelope. Parameters and results stay bytes: the dialect has their codec."""

from __future__ import annotations

from typing import Any

import msgspec

from errands.errors import InvalidRequestError, MethodNotFoundError, ParseError
from errands.model.base import encode

_NULL = b"null"
#: What the JSON of a string, a number or null begins with.
_ID_STARTS = frozenset(b'"-0123456789n')


class RpcCall(msgspec.Struct, frozen=True, gc=False):
    """A request as it came; `id` and `params` are JSON that has not been decoded."""

    method: str
    id: bytes
    params: bytes


class _RpcRequest(msgspec.Struct, gc=False):
    method: str
    jsonrpc: str = ""
    id: msgspec.Raw = msgspec.Raw(_NULL)
    params: msgspec.Raw = msgspec.Raw(b"{}")


class RpcResponse(msgspec.Struct):
    """A response has either a `result` or an `error`; a `result` that is missing is empty."""

    jsonrpc: Any = None
    id: str | int | float | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: dict[str, Any] | None = None


class _JustId(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw(_NULL)


_decode_request = msgspec.json.Decoder(_RpcRequest).decode
_decode_id = msgspec.json.Decoder(_JustId).decode
#: Returns the answer in a body. Raises `msgspec.DecodeError` when it is not a JSON-RPC answer.
read_response = msgspec.json.Decoder(RpcResponse).decode


def read_request(body: bytes) -> RpcCall:
    """Read the envelope. Raises `A2AError`; `read_id` returns the id that the answer must have then."""
    try:
        request = _decode_request(body)
    except msgspec.ValidationError as error:
        if body.lstrip()[:1] == b"[":
            raise InvalidRequestError("Batches are not supported; send one request object at a time") from None
        raise InvalidRequestError(f"Request payload validation error: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"Invalid JSON payload: {error}") from None
    except RecursionError:
        raise InvalidRequestError("The request is nested too deeply") from None
    request_id = bytes(request.id)
    if request_id[0] not in _ID_STARTS:
        raise InvalidRequestError("id must be a string, a number or null")
    if request.jsonrpc != "2.0":
        raise InvalidRequestError('jsonrpc must be "2.0"')
    params = bytes(request.params)
    if params == _NULL:
        params = b"{}"
    elif params[:1] != b"{":
        raise InvalidRequestError("params must be an object")
    return RpcCall(request.method, request_id, params)


def read_id(body: bytes) -> bytes:
    """Return the id of a request whose envelope is invalid; null if it has none."""
    try:
        request_id = bytes(_decode_id(body).id)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _NULL
    return request_id if request_id[0] in _ID_STARTS else _NULL


def method_not_found(method: str) -> MethodNotFoundError:
    return MethodNotFoundError(f"Method not found: {method[:100]}")


def before_result(request_id: bytes) -> bytes:
    """Return the part of an answer before its result. Only a brace follows after the result."""
    return b'{"jsonrpc":"2.0","id":%b,"result":' % request_id


def result_bytes(request_id: bytes, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, result)


def error_bytes(request_id: bytes, error: dict[str, Any]) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request_id, encode(error))


def request_bytes(request_id: str, method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (encode(request_id), encode(method), params)
