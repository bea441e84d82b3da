"""What a bookie would say, for tests: answers of both protocols, built by hand and not by the code under test."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from offloaderd.format.pb.bookkeeper import protocol_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence


def framed(message: bytes) -> bytes:
    """Return a message with its length before it."""
    return len(message).to_bytes(4, "big") + message


def v2_read(ledger_id: int, entry_id: int, entry: bytes = b"", *, code: int = 0) -> bytes:
    """Return the frame of an answer to a single read."""
    return framed(struct.pack(">BBHiqq", 2, 2, 0, code, ledger_id, entry_id) + entry)


def v2_batch(request_id: int, ledger_id: int, first: int, entries: Sequence[bytes], *, code: int = 0) -> bytes:
    """Return the frame of an answer to a batch read."""
    head = struct.pack(">BBHiqqq", 2, 7, 0, code, ledger_id, first, request_id)
    return framed(head + b"".join(framed(entry) for entry in entries))


def v3_header(txn_id: int, operation: int, *, version: int = 3) -> pb.ResponseHeader:
    """Return the header of a v3 answer."""
    return pb.ResponseHeader(version=version, operation=operation, txnId=txn_id)


def v3_read(
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    entry: bytes | None = None,
    *,
    max_lac: int | None = None,
    code: int = 0,
) -> bytes:
    """Return the frame of an answer to a v3 read."""
    read = pb.ReadResponse(status=code, ledgerId=ledger_id, entryId=entry_id)
    if entry is not None:
        read.body = entry
    if max_lac is not None:
        read.maxLac = max_lac
    return framed(pb.Response(header=v3_header(txn_id, 1), status=code, readResponse=read).SerializeToString())


def v3_refusal(txn_id: int, operation: int, code: int) -> bytes:
    """Return the frame of an answer that is nothing but an error."""
    return framed(pb.Response(header=v3_header(txn_id, operation), status=code).SerializeToString())


def v3_auth(txn_id: int, plugin: str, token: bytes, *, code: int = 0) -> bytes:
    """Return the frame of one step of an authentication."""
    message = pb.AuthMessage(pluginName=plugin, payload=token)
    return framed(pb.Response(header=v3_header(txn_id, 5), status=code, authResponse=message).SerializeToString())


def v3_start_tls(txn_id: int) -> bytes:
    """Return the frame after which TLS begins."""
    return framed(
        pb.Response(header=v3_header(txn_id, 9), status=0, startTlsResponse=pb.StartTls()).SerializeToString()
    )
