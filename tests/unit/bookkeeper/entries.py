"""Entries as BookKeeper's writers package them, made for tests independently of the checker."""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from typing import TYPE_CHECKING

import google_crc32c

from offloaderd.bookkeeper.wire.entry import DigestType

if TYPE_CHECKING:
    from collections.abc import Sequence


def digest(kind: DigestType, covered: bytes, password: bytes = b"") -> bytes:
    """Return the digest over `covered` as it is stored."""
    match kind:
        case DigestType.CRC32:
            return zlib.crc32(covered).to_bytes(8, "big")
        case DigestType.CRC32C:
            return int(google_crc32c.value(covered)).to_bytes(4, "big")
        case DigestType.HMAC:
            return hmac.digest(hashlib.sha1(b"mac" + password, usedforsecurity=False).digest(), covered, "sha1")
        case DigestType.DUMMY:
            return b""


def package(  # one parameter for each field of the header
    kind: DigestType,
    ledger_id: int,
    entry_id: int,
    payload: bytes,
    *,
    lac: int | None = None,
    length: int | None = None,
    password: bytes = b"",
) -> bytes:
    """Return a stored entry; by default with the LAC before it and the length of its own payload."""
    head = struct.pack(
        ">qqqq",
        ledger_id,
        entry_id,
        entry_id - 1 if lac is None else lac,
        len(payload) if length is None else length,
    )
    return head + digest(kind, head + payload, password) + payload


def package_all(
    kind: DigestType, ledger_id: int, first: int, payloads: Sequence[bytes], *, before: int = 0, password: bytes = b""
) -> list[bytes]:
    """Return consecutive stored entries with running lengths."""
    stored = []
    for entry_id, payload in enumerate(payloads, first):
        before += len(payload)
        stored.append(package(kind, ledger_id, entry_id, payload, length=before, password=password))
    return stored


def master_key(password: bytes) -> bytes:
    """Return the key with which a writer adds and fences; only tests that play one have it."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()
