"""Metrics of requests to the object store, and the hook that counts them."""

from offloaderd.core.metrics.families import Families, counter, gauge, histogram
from offloaderd.core.metrics.values import OPEN, S3_CODES, S3_THROTTLES


class S3Metrics(Families):
    """The metrics of requests to the object store."""

    s3_requests = counter(
        "Answers of the object store by operation and code. More than 5 % of 5xx: ask its operator.",
        operation=OPEN,
        code=OPEN,
    )
    s3_request_duration_seconds = histogram("Time of one request to its last byte.", operation=OPEN)
    s3_throttles = counter(
        "Answers that asked for fewer requests (503 SlowDown, 429). Lasting: lower offload.parts_in_flight_max."
    )
    s3_bytes = counter(
        "Body bytes received (in) and sent (out), which may be charged as traffic.", direction=("in", "out")
    )
    s3_requests_in_flight = gauge(
        "Requests to the object store that are not answered, with those that wait for a connection. At "
        "objects.connections_max for long: raise that setting, or the store is slow."
    )
    bucket_accessible = gauge(
        "1 while the bucket exists and can be used with our credentials. Page when 0 for two minutes."
    )

    def request_begun(self) -> None:
        """Count the begin of a request to the object store; `request` follows for each."""
        self.s3_requests_in_flight.inc()

    def request(self, operation: str, code: str, seconds: float, bytes_in: int, bytes_out: int) -> None:
        """Count one request to the object store: the hook of `objects/s3/store.py`."""
        self.s3_requests_in_flight.dec()
        known = code if code in S3_CODES else "other"
        self.s3_requests.labels(operation=operation, code=known).inc()
        self.s3_request_duration_seconds.labels(operation=operation).observe(seconds)
        self.s3_bytes.labels(direction="in").inc(bytes_in)
        self.s3_bytes.labels(direction="out").inc(bytes_out)
        if code in S3_THROTTLES:
            self.s3_throttles.inc()
