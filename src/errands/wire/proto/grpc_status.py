"""Errors over gRPC: a `google.rpc.Status` with the same details as in the other bindings, written and read."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict, SerializeToJsonError
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from errands.errors import A2AError, InvalidParamsError, UnavailableError
from errands.wire.proto.codec import Codec
from errands.wire.status import DOMAIN, ERRORS, STATUS, from_http

#: The trailing metadata that carries the Status.
DETAILS_KEY = "grpc-status-details-bin"

#: What a code means without an ErrorInfo: from a proxy, or from an agent that sends none.
_REASON_OF_CODE = {
    "INVALID_ARGUMENT": "INVALID_PARAMS",
    "NOT_FOUND": "TASK_NOT_FOUND",
    "PERMISSION_DENIED": "PERMISSION_DENIED",
    "UNAUTHENTICATED": "UNAUTHENTICATED",
    "RESOURCE_EXHAUSTED": "PAYLOAD_TOO_LARGE",
    "FAILED_PRECONDITION": "UNSUPPORTED_OPERATION",
    "UNAVAILABLE": "UNAVAILABLE",
    "INTERNAL": "INTERNAL",
    "UNKNOWN": "INTERNAL",
}
_REASON_OF_NAME = {cls.__name__: reason for reason, cls in ERRORS.items()}
_NAMED = re.compile(r"(?P<name>[A-Za-z]+Error): (?P<message>.*)", re.DOTALL)


def code_of(error: A2AError) -> grpc.StatusCode:
    return grpc.StatusCode[STATUS[error.reason].grpc]


def message_of(error: A2AError, codec: Codec) -> str:
    return f"{ERRORS[error.reason].__name__}: {error.message}" if codec.names_errors else error.message


def details_of(error: A2AError, codec: Codec) -> bytes:
    """Return the value of `DETAILS_KEY` for an error."""
    metadata = {key: str(value) for key, value in error.metadata.items()}
    details: list[Any] = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)]
    if isinstance(error, InvalidParamsError) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, UnavailableError):
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.seconds = error.retry_after
        details.append(retry)
    status = status_pb2.Status(code=code_of(error).value[0], message=message_of(error, codec))
    for detail in details:
        status.details.add().Pack(detail)
    raw: bytes = status.SerializeToString()
    return raw


def read_failure(code: grpc.StatusCode, message: str, details: bytes | None) -> A2AError | None:
    """Return the agent's error, by its ErrorInfo, else by its name, else by the code; None if A2A has no such code."""
    described = _read_details(details)
    reason = _reason_in(described)
    named = _NAMED.fullmatch(message)
    if named is not None and named["name"] in _REASON_OF_NAME:
        reason, message = reason or _REASON_OF_NAME[named["name"]], named["message"]
    reason = reason or _REASON_OF_CODE.get(code.name)
    if reason is None:
        return None
    # The details are those of HTTP+JSON, so the same function reads them.
    body = {"message": message or code.name, "details": [{"reason": reason}, *described]}
    return from_http(STATUS[reason].http, {"error": body})


def has_error_info(details: bytes | None) -> bool:
    """Return whether the error is the agent's own, and not that of a proxy or of gRPC."""
    return _reason_in(_read_details(details)) is not None


def _reason_in(details: list[dict[str, Any]]) -> str | None:
    return next((detail["reason"] for detail in reversed(details) if detail.get("reason") in STATUS), None)


def _read_details(raw: bytes | None) -> list[dict[str, Any]]:
    """Return the details of a Status as HTTP+JSON writes them, without those that cannot be read."""
    found: list[dict[str, Any]] = []
    with suppress(DecodeError):
        for detail in status_pb2.Status.FromString(raw or b"").details:
            for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
                with suppress(DecodeError, SerializeToJsonError):
                    message: Any = kind()
                    if detail.Unpack(message):
                        found.append(MessageToDict(message))
    return found
