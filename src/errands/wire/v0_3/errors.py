"""Errors of A2A 0.3: the codes of JSON-RPC are those of 1.0, HTTP+JSON has statuses and a body of its own.

The specification of 0.3 leaves that body open. This one is read by the official SDKs: `message` for all, `type` for
the Python one, `code` and `data` as over JSON-RPC for the JavaScript one.
"""

from __future__ import annotations

from typing import Any

from errands.errors import A2AError, ExtendedAgentCardNotConfiguredError, ExtendedCardNotOfferedError
from errands.wire.status import STATUS, details_of, from_http, from_jsonrpc

#: Where the status is another one than in 1.0.
_HTTP = {
    "INVALID_PARAMS": 422,
    "TASK_NOT_CANCELABLE": 409,
    "PUSH_NOTIFICATION_NOT_SUPPORTED": 501,
    "UNSUPPORTED_OPERATION": 501,
    "CONTENT_TYPE_NOT_SUPPORTED": 415,
    "INVALID_AGENT_RESPONSE": 502,
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": 404,
}
_TYPES = {
    "TASK_NOT_FOUND": "TaskNotFoundError",
    "TASK_NOT_CANCELABLE": "TaskNotCancelableError",
    "PUSH_NOTIFICATION_NOT_SUPPORTED": "PushNotificationNotSupportedError",
    "UNSUPPORTED_OPERATION": "UnsupportedOperationError",
    "CONTENT_TYPE_NOT_SUPPORTED": "ContentTypeNotSupportedError",
    "INVALID_AGENT_RESPONSE": "InvalidAgentResponseError",
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": "ExtendedAgentCardNotConfiguredError",
    "EXTENSION_SUPPORT_REQUIRED": "ExtensionSupportRequiredError",
    "VERSION_NOT_SUPPORTED": "VersionNotSupportedError",
    "INVALID_JSON": "JSONParseError",
    "INVALID_REQUEST": "InvalidRequestError",
    "METHOD_NOT_FOUND": "MethodNotFoundError",
    "INVALID_PARAMS": "InvalidParamsError",
    "INTERNAL": "InternalError",
}
_REASONS = {name: reason for reason, name in _TYPES.items()} | {
    "AuthenticatedExtendedCardNotConfiguredError": "EXTENDED_AGENT_CARD_NOT_CONFIGURED"
}
#: What a status means that comes without a `type`, as from a2a-sdk 0.3.
_REASON_OF_HTTP = {
    404: "TASK_NOT_FOUND",
    409: "TASK_NOT_CANCELABLE",
    415: "CONTENT_TYPE_NOT_SUPPORTED",
    422: "INVALID_PARAMS",
    501: "UNSUPPORTED_OPERATION",
}


def in_0_3(error: A2AError) -> A2AError:
    """Return the error that 0.3 has for this one: one and the same for an extended card not offered or not there."""
    if isinstance(error, ExtendedCardNotOfferedError):
        return ExtendedAgentCardNotConfiguredError(error.message)
    return error


def to_http(error: A2AError) -> tuple[int, dict[str, Any]]:
    """Status code and body of an HTTP+JSON answer."""
    status = STATUS[error.reason]
    body: dict[str, Any] = {"code": status.jsonrpc, "message": error.message, "data": details_of(error)}
    if name := _TYPES.get(error.reason):
        body["type"] = name
    return _HTTP.get(error.reason, status.http), body


def read_http(status: int, body: Any) -> A2AError | None:
    """The error in an HTTP+JSON answer, in any form that is seen.

    That is: a JSON-RPC error as we and the JavaScript SDK write it, a bare message as from a2a-sdk 0.3, and 1.0's form,
    which a2a-sdk 1.x uses for 0.3 as well.
    """
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("error"), dict):
        return from_http(status, body)
    message = body.get("message")
    if not isinstance(message, str):
        return None
    if isinstance(body.get("code"), int) and body["code"] < 0:
        return read_jsonrpc(body)
    reason = _REASONS.get(str(body.get("type"))) or _REASON_OF_HTTP.get(status)
    details = None if reason is None else [{"reason": reason}]
    return from_http(status, {"error": {"message": message, "details": details}})


def read_jsonrpc(error: dict[str, Any]) -> A2AError:
    """The error in a JSON-RPC answer. `data` may be anything in 0.3; it is kept in `metadata`."""
    read = from_jsonrpc(error)
    data = error.get("data")
    if isinstance(data, dict):
        read.metadata |= {str(key): value for key, value in data.items()}
    elif data is not None and not _is_details(data):
        read.metadata["data"] = data
    return read


def _is_details(data: Any) -> bool:
    return isinstance(data, list) and bool(data) and all(isinstance(d, dict) and "@type" in d for d in data)
