"""The proxy knows the operations of S3, and its draws come from the seed alone."""

from __future__ import annotations

from uuid import UUID

import pytest

from offloaderd.drill.s3_proxy import OPERATIONS, Fault, Message, Shaking, changed, operation_of, suits
from offloaderd.objects import keys

DATA = f"/bucket/{keys.SegmentKeys('', UUID(int=1)).data}"


@pytest.mark.parametrize(
    ("line", "operation"),
    [
        (f"POST {DATA}?uploads HTTP/1.1", "create_upload"),
        (f"PUT {DATA}?partNumber=1&uploadId=7 HTTP/1.1", "upload_part"),
        (f"GET {DATA}?max-parts=1000&uploadId=7 HTTP/1.1", "list_parts"),
        (f"POST {DATA}?uploadId=7 HTTP/1.1", "complete_upload"),
        (f"DELETE {DATA}?uploadId=7 HTTP/1.1", "abort_upload"),
        (f"PUT {DATA}-index HTTP/1.1", "put index"),
        (f"GET {DATA}-manifest HTTP/1.1", "get manifest"),
        (f"HEAD {DATA} HTTP/1.1", "head data"),
        ("GET /bucket?list-type=2&prefix=x HTTP/1.1", "list"),
        ("GET /bucket?uploads&max-uploads=10 HTTP/1.1", "list_uploads"),
        ("POST /bucket?delete HTTP/1.1", "delete"),
    ],
)
def test_requests_are_told_apart(line: str, operation: str) -> None:
    """By method, path and query, as S3 does."""
    assert operation_of(line) == operation
    assert operation in OPERATIONS


def test_the_same_seed_draws_the_same_faults() -> None:
    """And another seed others; about as many as the rate says."""
    draws = [[shaking.draw("get data") for _ in range(1000)] for shaking in (Shaking(1, 0.2), Shaking(1, 0.2))]
    assert draws[0] == draws[1]
    assert draws[0] != [Shaking(2, 0.2).draw("get data")] * 1000
    fired = [fault for fault in draws[0] if fault is not None]
    assert 150 < len(fired) < 250
    assert all(suits(fault, "get data") for fault in fired)
    assert len(set(fired)) == sum(suits(fault, "get data") for fault in Fault)


def test_answers_are_changed_where_it_matters() -> None:
    """The ETag of a header and of a listing, a bit of the body, half of the body with a length that agrees."""
    answer = Message([b"HTTP/1.1 200 OK", b'ETag: "0123456789abcdef"', b"Content-Length: 8"], b"01234567")
    assert changed(answer, Fault.WRONG_ETAG).header(b"etag") == b'"badbadba89abcdef"'
    assert changed(answer, Fault.FLIPPED).body == b"01230567"
    short = changed(answer, Fault.SHORT)
    assert (short.body, short.length) == (b"0123", 4)
    listing = Message([b"HTTP/1.1 200 OK"], b"<ETag>&#34;0123456789abcdef&#34;</ETag>")
    assert changed(listing, Fault.WRONG_ETAG).body == b"<ETag>&#34;badbadba89abcdef&#34;</ETag>"
    refused = Message([b"HTTP/1.1 404 Not Found", b"Content-Length: 8"], b"01234567")
    assert changed(refused, Fault.SHORT) is refused
