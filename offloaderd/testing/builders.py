"""Entries for tests: their bytes depend on their position, so that a mix-up is detected."""

import json
from hashlib import blake2b

from offloaderd.core.model import EntryBatch


def payload(ledger_id: int, entry_id: int, payload_bytes: int) -> bytes:
    """Return bytes that depend on the position alone: two positions never share them (from 16 bytes on)."""
    if payload_bytes == 0:
        return b""
    seed = blake2b(f"{ledger_id}:{entry_id}".encode(), digest_size=64).digest()
    return (seed * (payload_bytes // len(seed) + 1))[:payload_bytes]


def payloads(count: int, payload_bytes: int = 100, *, ledger_id: int = 0, first_entry_id: int = 0) -> list[bytes]:
    """Return `count` payloads of consecutive entries."""
    return [payload(ledger_id, entry_id, payload_bytes) for entry_id in range(first_entry_id, first_entry_id + count)]


def batch(ledger_id: int, first_entry_id: int, count: int, payload_bytes: int = 100) -> EntryBatch:
    """Return a batch of consecutive entries."""
    return EntryBatch(
        ledger_id, first_entry_id, payloads(count, payload_bytes, ledger_id=ledger_id, first_entry_id=first_entry_id)
    )


def flights(count: int, *, first: int = 0) -> list[bytes]:
    """Return entries as a topic of flights would hold them: small JSON objects of different lengths."""
    carriers = ("AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN")
    return [
        json.dumps(
            {
                "flight": number,
                "carrier": carriers[number % len(carriers)],
                "distance": 94 + number * 37 % 4889,
                "delay": number * 13 % 200 - 40,
            }
        ).encode()
        for number in range(first, first + count)
    ]
