"""The details of an error status: ErrorInfo, RetryInfo and Help of google.rpc (AIP-193), beside our own ErrorDetail."""

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from offloaderd.protocol.errors import DETAIL_KEY
from offloaderd.protocol.v1.common_pb2 import ErrorDetail

STATUS_KEY = "grpc-status-details-bin"
DOMAIN = "offloaderd"
"""Of `reason`: reasons of one domain are unique."""
RETRY = Duration(seconds=1)
"""The shortest pause before the call is worth another try; clients wait longer after each failure."""


def trailing_metadata(
    code: grpc.StatusCode, message: str, detail: ErrorDetail, *, retry: bool
) -> tuple[tuple[str, bytes], ...]:
    """Return the trailing metadata of an error status; `retry`: the same call may succeed later."""
    status = status_pb2.Status(code=code.value[0], message=message)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=detail.reason, domain=DOMAIN))
    if retry:
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=RETRY))
    if detail.hint:
        link = error_details_pb2.Help.Link(description=detail.hint)  # these pages have no address that all can follow
        status.details.add().Pack(error_details_pb2.Help(links=[link]))
    return (DETAIL_KEY, detail.SerializeToString()), (STATUS_KEY, status.SerializeToString())
