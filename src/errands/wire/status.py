"""The code of each error in each binding: one row per reason, used by server and client."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from errands import errors
from errands.errors import A2AError, InvalidParamsError, UnavailableError

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"
RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
DOMAIN = "a2a-protocol.org"


class ErrorStatus(NamedTuple):
    """The codes of one error."""

    jsonrpc: int
    http: int
    #: The canonical name in gRPC and in `google.rpc.Status`.
    grpc: str


STATUS: dict[str, ErrorStatus] = {
    "TASK_NOT_FOUND": ErrorStatus(-32001, 404, "NOT_FOUND"),
    "TASK_NOT_CANCELABLE": ErrorStatus(-32002, 400, "FAILED_PRECONDITION"),
    "PUSH_NOTIFICATION_NOT_SUPPORTED": ErrorStatus(-32003, 400, "FAILED_PRECONDITION"),
    "UNSUPPORTED_OPERATION": ErrorStatus(-32004, 400, "FAILED_PRECONDITION"),
    "CONTENT_TYPE_NOT_SUPPORTED": ErrorStatus(-32005, 400, "INVALID_ARGUMENT"),
    "INVALID_AGENT_RESPONSE": ErrorStatus(-32006, 500, "INTERNAL"),
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": ErrorStatus(-32007, 400, "FAILED_PRECONDITION"),
    "EXTENSION_SUPPORT_REQUIRED": ErrorStatus(-32008, 400, "FAILED_PRECONDITION"),
    "VERSION_NOT_SUPPORTED": ErrorStatus(-32009, 400, "FAILED_PRECONDITION"),
    "INVALID_JSON": ErrorStatus(-32700, 400, "INVALID_ARGUMENT"),
    "INVALID_REQUEST": ErrorStatus(-32600, 400, "INVALID_ARGUMENT"),
    "PAYLOAD_TOO_LARGE": ErrorStatus(-32600, 413, "RESOURCE_EXHAUSTED"),
    "METHOD_NOT_FOUND": ErrorStatus(-32601, 404, "UNIMPLEMENTED"),
    "INVALID_PARAMS": ErrorStatus(-32602, 400, "INVALID_ARGUMENT"),
    "INTERNAL": ErrorStatus(-32603, 500, "INTERNAL"),
    # The specification leaves these to the server. Codes at the end of the A2A range avoid those of later versions.
    "TOO_MANY_PUSH_CONFIGS": ErrorStatus(-32090, 400, "FAILED_PRECONDITION"),
    "TOO_MANY_BYTES": ErrorStatus(-32091, 429, "RESOURCE_EXHAUSTED"),
    "TOO_MANY_STREAMS": ErrorStatus(-32092, 429, "RESOURCE_EXHAUSTED"),
    "TOO_MANY_TASKS": ErrorStatus(-32093, 429, "RESOURCE_EXHAUSTED"),
    "TOO_MANY_REQUESTS": ErrorStatus(-32094, 429, "RESOURCE_EXHAUSTED"),
    "OVERLOADED": ErrorStatus(-32095, 503, "UNAVAILABLE"),
    "UNAVAILABLE": ErrorStatus(-32096, 503, "UNAVAILABLE"),
    "PERMISSION_DENIED": ErrorStatus(-32097, 403, "PERMISSION_DENIED"),
    "UNAUTHENTICATED": ErrorStatus(-32098, 401, "UNAUTHENTICATED"),
}

#: Errors over JSON-RPC have the status 200, except where HTTP itself needs to know.
JSONRPC_HTTP = {
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "PAYLOAD_TOO_LARGE": 413,
    "TOO_MANY_BYTES": 429,
    "TOO_MANY_STREAMS": 429,
    "TOO_MANY_TASKS": 429,
    "TOO_MANY_REQUESTS": 429,
    "OVERLOADED": 503,
    "UNAVAILABLE": 503,
}


def _error_classes(base: type[A2AError]) -> dict[str, type[A2AError]]:
    found: dict[str, type[A2AError]] = {}
    for cls in base.__subclasses__():
        found.update(_error_classes(cls))
        found[cls.reason] = cls
    return found


#: The class of each reason: of several classes with the same reason, the most general.
ERRORS: dict[str, type[A2AError]] = _error_classes(A2AError)
_REASON_OF_CODE = {status.jsonrpc: reason for reason, status in reversed(STATUS.items())}
_REASON_OF_HTTP = {
    400: "INVALID_REQUEST",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "TASK_NOT_FOUND",
    413: "PAYLOAD_TOO_LARGE",
    429: "TOO_MANY_REQUESTS",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "UNAVAILABLE",
}
#: A duration as JSON writes it; fractions of a second are ignored.
_SECONDS = re.compile(r"([0-9]{1,9})(?:\.[0-9]*)?s")


def details_of(error: A2AError) -> list[dict[str, Any]]:
    """Return the `google.rpc` details: always an ErrorInfo, if known the wrong field and when to try again."""
    info: dict[str, Any] = {"@type": ERROR_INFO, "reason": error.reason, "domain": DOMAIN}
    if error.metadata:
        info["metadata"] = {key: str(value) for key, value in error.metadata.items()}
    details = [info]
    if isinstance(error, InvalidParamsError) and error.field:
        violation = {"field": error.field, "description": error.message}
        details.append({"@type": BAD_REQUEST, "fieldViolations": [violation]})
    if isinstance(error, UnavailableError):
        details.append({"@type": RETRY_INFO, "retryDelay": f"{error.retry_after}s"})
    return details


def to_jsonrpc(error: A2AError) -> dict[str, Any]:
    """Return the `error` member of a JSON-RPC answer."""
    code = STATUS[error.reason].jsonrpc
    return {"code": code, "message": error.message, "data": details_of(error)}


def to_http(error: A2AError) -> tuple[int, dict[str, Any]]:
    """Return the status code and the body of an HTTP+JSON answer."""
    status = STATUS[error.reason]
    body = {
        "code": status.http,
        "status": status.grpc,
        "message": error.message,
        "details": details_of(error),
    }
    return status.http, {"error": body}


def _read(default: str, message: str, details: Any) -> A2AError:
    """Return the exception that an agent's details name, or without a name the one of the reason `default`."""
    reason, metadata, field, wait = default, None, None, None
    for detail in details if isinstance(details, list) else ():
        if not isinstance(detail, dict):
            continue
        if isinstance(named := detail.get("reason"), str) and named in STATUS:
            reason, metadata = named, detail.get("metadata")
        violations = detail.get("fieldViolations")
        for violation in violations if isinstance(violations, list) else ():
            if isinstance(violation, dict):
                field = field or violation.get("field")
        if isinstance(delay := detail.get("retryDelay"), str) and (seconds := _SECONDS.fullmatch(delay)):
            wait = int(seconds[1])
    error = ERRORS.get(reason, errors.InternalError)(message)
    if isinstance(error, UnavailableError):
        error.retry_after = error.retry_after if wait is None else wait
    elif isinstance(metadata, dict):
        error.metadata.update(metadata)
    if isinstance(error, InvalidParamsError):
        error.field = field
    return error


def from_jsonrpc(error: dict[str, Any]) -> A2AError:
    """Return the exception for a JSON-RPC error, by its ErrorInfo or, without one, by its code."""
    code = error.get("code")
    reason = _REASON_OF_CODE.get(code, "INTERNAL") if isinstance(code, int) else "INTERNAL"
    return _read(reason, str(error.get("message") or "Unknown error"), error.get("data"))


def from_http(status: int, body: Any) -> A2AError:
    """Return the exception for an HTTP+JSON error, by its ErrorInfo or, without one, by the status code."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        error = {}
    reason = _REASON_OF_HTTP.get(status, "INVALID_REQUEST" if status < 500 else "INTERNAL")
    return _read(reason, str(error.get("message") or f"HTTP {status}"), error.get("details"))
