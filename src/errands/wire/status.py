"""From an error's reason to each binding's code and back: one row per reason, used by server and client."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from errands import errors
from errands.errors import A2AError, InvalidParamsError, UnavailableError

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"
RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
DOMAIN = "a2a-protocol.org"


class Status(NamedTuple):
    jsonrpc: int
    http: int
    #: The canonical name in gRPC and in `google.rpc.Status`.
    grpc: str


STATUS: dict[str, Status] = {
    "TASK_NOT_FOUND": Status(-32001, 404, "NOT_FOUND"),
    "TASK_NOT_CANCELABLE": Status(-32002, 400, "FAILED_PRECONDITION"),
    "PUSH_NOTIFICATION_NOT_SUPPORTED": Status(-32003, 400, "FAILED_PRECONDITION"),
    "UNSUPPORTED_OPERATION": Status(-32004, 400, "FAILED_PRECONDITION"),
    "CONTENT_TYPE_NOT_SUPPORTED": Status(-32005, 400, "INVALID_ARGUMENT"),
    "INVALID_AGENT_RESPONSE": Status(-32006, 500, "INTERNAL"),
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": Status(-32007, 400, "FAILED_PRECONDITION"),
    "EXTENSION_SUPPORT_REQUIRED": Status(-32008, 400, "FAILED_PRECONDITION"),
    "VERSION_NOT_SUPPORTED": Status(-32009, 400, "FAILED_PRECONDITION"),
    "INVALID_JSON": Status(-32700, 400, "INVALID_ARGUMENT"),
    "INVALID_REQUEST": Status(-32600, 400, "INVALID_ARGUMENT"),
    "PAYLOAD_TOO_LARGE": Status(-32600, 413, "RESOURCE_EXHAUSTED"),
    "METHOD_NOT_FOUND": Status(-32601, 404, "UNIMPLEMENTED"),
    "INVALID_PARAMS": Status(-32602, 400, "INVALID_ARGUMENT"),
    "INTERNAL": Status(-32603, 500, "INTERNAL"),
    # The specification leaves these to the server; the end of the A2A range keeps clear of later codes.
    "OVERLOADED": Status(-32095, 503, "UNAVAILABLE"),
    "UNAVAILABLE": Status(-32096, 503, "UNAVAILABLE"),
    "PERMISSION_DENIED": Status(-32097, 403, "PERMISSION_DENIED"),
    "UNAUTHENTICATED": Status(-32098, 401, "UNAUTHENTICATED"),
}

#: JSON-RPC answers errors with HTTP 200, except where HTTP itself has to know.
JSONRPC_HTTP = {
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "PAYLOAD_TOO_LARGE": 413,
    "OVERLOADED": 503,
    "UNAVAILABLE": 503,
}


def _error_classes(base: type[A2AError]) -> dict[str, type[A2AError]]:
    found: dict[str, type[A2AError]] = {}
    for cls in base.__subclasses__():
        found.update(_error_classes(cls))
        found[cls.reason] = cls
    return found


#: The class that stands for a reason: of several that share one, the most general.
ERRORS: dict[str, type[A2AError]] = _error_classes(A2AError)
_REASON_OF_CODE = {status.jsonrpc: reason for reason, status in reversed(STATUS.items())}
_REASON_OF_HTTP = {
    400: "INVALID_REQUEST",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "TASK_NOT_FOUND",
    413: "PAYLOAD_TOO_LARGE",
    429: "UNAVAILABLE",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "UNAVAILABLE",
}


#: A duration as JSON writes it; what is beyond whole seconds does not count.
_SECONDS = re.compile(r"([0-9]{1,9})(?:\.[0-9]*)?s")


def details_of(error: A2AError) -> list[dict[str, Any]]:
    """The `google.rpc` details: always an ErrorInfo, the offending field, and when to try again."""
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
    """The `error` member of a JSON-RPC answer."""
    code = STATUS[error.reason].jsonrpc
    return {"code": code, "message": error.message, "data": details_of(error)}


def to_http(error: A2AError) -> tuple[int, dict[str, Any]]:
    """Status code and body of an HTTP+JSON answer."""
    status = STATUS[error.reason]
    body = {
        "code": status.http,
        "status": status.grpc,
        "message": error.message,
        "details": details_of(error),
    }
    return status.http, {"error": body}


class _Details(NamedTuple):
    reason: str | None = None
    metadata: dict[str, Any] = {}
    field: str | None = None
    #: Seconds to wait before trying again.
    wait: int | None = None


def _read_details(details: Any) -> _Details:
    found = _Details()
    for detail in details if isinstance(details, list) else ():
        if not isinstance(detail, dict):
            continue
        named, metadata, violations = detail.get("reason"), detail.get("metadata"), detail.get("fieldViolations")
        if isinstance(named, str) and named in STATUS:
            found = found._replace(reason=named, metadata=metadata if isinstance(metadata, dict) else {})
        for violation in violations if isinstance(violations, list) else ():
            if isinstance(violation, dict):
                found = found._replace(field=found.field or violation.get("field"))
        if isinstance(delay := detail.get("retryDelay"), str) and (seconds := _SECONDS.fullmatch(delay)):
            found = found._replace(wait=int(seconds[1]))
    return found


def _build(reason: str, message: str, details: _Details) -> A2AError:
    cls = ERRORS.get(reason, errors.InternalError)
    error = cls(message)
    if isinstance(error, UnavailableError):
        error.retry_after = error.retry_after if details.wait is None else details.wait
    elif not isinstance(error, errors.AuthenticationRequiredError):
        error.metadata.update(details.metadata)
    if isinstance(error, InvalidParamsError):
        error.field = details.field
    return error


def from_jsonrpc(error: dict[str, Any]) -> A2AError:
    """The exception for a JSON-RPC error, by its ErrorInfo and, without one, by its code."""
    details = _read_details(error.get("data"))
    reason = details.reason
    if reason is None:
        code = error.get("code")
        reason = _REASON_OF_CODE.get(code, "INTERNAL") if isinstance(code, int) else "INTERNAL"
    return _build(reason, str(error.get("message") or "Unknown error"), details)


def from_http(status: int, body: Any) -> A2AError:
    """The exception for an HTTP+JSON error, by its ErrorInfo and, without one, by the status code."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        error = {}
    details = _read_details(error.get("details"))
    reason = details.reason or _REASON_OF_HTTP.get(status, "INVALID_REQUEST" if status < 500 else "INTERNAL")
    return _build(reason, str(error.get("message") or f"HTTP {status}"), details)
