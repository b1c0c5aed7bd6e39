"""What a client reads from the status of a failed gRPC call."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from errands.errors import OverloadedError
from errands.wire.proto.grpc_status import has_error_info, read_failure


@pytest.mark.parametrize(("seconds", "wait"), [(7, 7), (0, 0), (10**15, 1), (-(10**15), 1)])
def test_a_delay_that_is_out_of_range_is_left_out(seconds: int, wait: int) -> None:
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.seconds = seconds
    status = status_pb2.Status()
    for detail in (retry, error_details_pb2.ErrorInfo(reason="OVERLOADED")):
        status.details.add().Pack(detail)
    details = status.SerializeToString()
    error = read_failure(grpc.StatusCode.UNAVAILABLE, "too much", details)
    assert has_error_info(details)
    assert isinstance(error, OverloadedError)
    assert (error.message, error.retry_after) == ("too much", wait)
