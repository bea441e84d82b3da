"""A stored entry: header, digest, payload; nothing of it is used before digest and ids are checked.

Rules: the digest comes first, then the ids it covers. A BadEntry concerns one replica: keep the verified entries before
it and go on at the next replica; it is final only when all have failed. Replicas of one entry may differ in their LAC
(recovery and re-replication package again), so headers are never compared or stored. WIRE.md, section 5.

This is the hot path: per entry one slice of the header, one of the payload, one checksum.
"""

import hashlib
import hmac
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate
from typing import Final, NamedTuple

import google_crc32c

from offloaderd.core import native
from offloaderd.core.errors import CorruptData

ENTRY_HEADER = struct.Struct(">qqqq")
_HEADER_BYTES: Final = ENTRY_HEADER.size
COMPILED_BYTES_MAX: Final = 16 * 1024
"""Larger entries are checked in Python: google-crc32c has three streams at a time, and their loop costs nothing."""


class DigestType(IntEnum):
    """How entries of a ledger are protected; the numbers are those in the ledger's metadata."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4

    @property
    def size_bytes(self) -> int:
        """Length of the digest."""
        return struct.calcsize(">" + _DIGEST_FORMATS[self])


_DIGEST_FORMATS: Final = {DigestType.CRC32: "Q", DigestType.HMAC: "20s", DigestType.CRC32C: "I", DigestType.DUMMY: "0s"}


class BadEntry(CorruptData):
    """What one replica holds of an entry fails its check."""

    def __init__(self, ledger_id: int, entry_id: int, *, offset: int, expected: object, found: object) -> None:
        name = "its last confirmed or stored entry" if entry_id < 0 else f"entry {entry_id}"
        super().__init__(key=f"ledger {ledger_id}, {name}", offset=offset, expected=expected, found=found)
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class BadLength(BadEntry):
    """A sound entry that does not follow the one before it: all replicas are the same, so no other one helps."""


class Entry(NamedTuple):
    """A verified entry; `length` is the ledger's payload bytes up to and including it, `lac` the LAC in its header."""

    entry_id: int
    lac: int
    length: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class EntryRun:
    """The verified entries at the beginning of a batch, and the error of the first bad one.

    `lengths[i]` is the ledger's payload bytes up to and including entry `first_entry_id + i`; `lac` the greatest LAC of
    their headers, -1 without any.
    """

    ledger_id: int
    first_entry_id: int
    payloads: list[bytes] = field(repr=False)
    lengths: list[int] = field(repr=False)
    lac: int
    error: BadEntry | None

    def check_lengths(self, length_before: int | None = None) -> None:
        """Check each entry's length: that of the one before plus its payload; raises BadLength: a gap or a duplicate.

        `length_before` is the length of the entry before the run, 0 before entry 0; None takes the first one as given.
        It holds for ledgers of ordinary writers (Pulsar's are), not for those whose writer chose the entry ids.
        """
        if not self.payloads:
            return
        before = self.lengths[0] - len(self.payloads[0]) if length_before is None else length_before
        expected = list(accumulate(map(len, self.payloads), initial=before))[1:]
        if expected != self.lengths:
            wrong = next(index for index, length in enumerate(self.lengths) if length != expected[index])
            raise BadLength(
                self.ledger_id,
                self.first_entry_id + wrong,
                offset=24,
                expected=f"length {expected[wrong]}",
                found=self.lengths[wrong],
            )


class EntryChecker:
    """Checks entries of one ledger; the password is for HMAC only, and only the key made of it is kept."""

    def __init__(self, ledger_id: int, digest_type: DigestType, password: bytes = b"") -> None:
        self.ledger_id = ledger_id
        self.digest_type = digest_type
        self._layout = struct.Struct(ENTRY_HEADER.format + _DIGEST_FORMATS[digest_type])
        self._body_at = self._layout.size
        self._digest = _digest_function(digest_type, password)

    def check(self, stored: bytes, entry_id: int | None) -> Entry:
        """Return the entry in `stored`; `entry_id` None: any (a read of the last one). Raises BadEntry."""
        wanted = -1 if entry_id is None else entry_id
        if len(stored) < self._body_at:
            raise self._too_short(stored, wanted)
        ledger_id, found_id, lac, length, digest = self._layout.unpack_from(stored)
        payload = stored[self._body_at :]
        if self._digest(stored[:_HEADER_BYTES], payload) != digest:
            raise self._bad_digest(stored, wanted)
        if entry_id is None:
            wanted = max(found_id, 0)
        if ledger_id != self.ledger_id or found_id != wanted or lac < -1 or length < len(payload):
            raise self._bad_header(stored, wanted)
        return Entry(found_id, lac, length, payload)

    def check_run(self, first_entry_id: int, entries: list[bytes]) -> EntryRun:
        """Return the entries from `first_entry_id` on up to the first bad one, which becomes the run's error."""
        if self.digest_type is DigestType.CRC32C and entries and len(entries[0]) < COMPILED_BYTES_MAX:
            compiled = native.stored_payloads(entries, self.ledger_id, first_entry_id)
            if compiled is not None:
                return EntryRun(self.ledger_id, first_entry_id, *compiled, error=None)
        digest_of, unpack, body_at, header_bytes = self._digest, self._layout.unpack_from, self._body_at, _HEADER_BYTES
        wanted_ledger, wanted, lac_max = self.ledger_id, first_entry_id, -1
        payloads: list[bytes] = []
        lengths: list[int] = []
        error = None
        for stored in entries:
            if len(stored) < body_at:
                error = self._too_short(stored, wanted)
                break
            ledger_id, entry_id, lac, length, digest = unpack(stored)
            payload = stored[body_at:]
            if digest_of(stored[:header_bytes], payload) != digest:
                error = self._bad_digest(stored, wanted)
                break
            if ledger_id != wanted_ledger or entry_id != wanted or lac < -1 or length < len(payload):
                error = self._bad_header(stored, wanted)
                break
            if lac > lac_max:  # noqa: PLR1730 - a call of max() is a tenth of all this loop does
                lac_max = lac
            payloads.append(payload)
            lengths.append(length)
            wanted += 1
        return EntryRun(wanted_ledger, first_entry_id, payloads, lengths, lac_max, error)

    def _shown(self, digest: bytes | int) -> str:
        shown = digest.hex() if isinstance(digest, bytes) else f"{digest:08x}"
        return f"{self.digest_type.name} {shown}"

    def _too_short(self, stored: bytes, entry_id: int) -> BadEntry:
        expected = f"{self._body_at} bytes or more"
        return BadEntry(self.ledger_id, entry_id, offset=len(stored), expected=expected, found=len(stored))

    def _bad_digest(self, stored: bytes, entry_id: int) -> BadEntry:
        expected = self._shown(self._digest(stored[:_HEADER_BYTES], stored[self._body_at :]))
        found = self._shown(self._layout.unpack_from(stored)[-1])
        return BadEntry(self.ledger_id, entry_id, offset=_HEADER_BYTES, expected=expected, found=found)

    def _bad_header(self, stored: bytes, entry_id: int) -> BadEntry:
        """Name the first field of a sound header that is not what was asked for or cannot be."""
        ledger_id, found_id, lac, length = ENTRY_HEADER.unpack_from(stored)
        payload_bytes = len(stored) - self._body_at
        fields = (
            (ledger_id != self.ledger_id, 0, f"ledger {self.ledger_id}", ledger_id),
            (found_id != entry_id, 8, f"entry {entry_id}", found_id),
            (lac < -1, 16, "a LAC of -1 or more", lac),
            (True, 24, f"a length of {payload_bytes} or more", length),
        )
        offset, expected, found = next(rest for wrong, *rest in fields if wrong)
        return BadEntry(self.ledger_id, entry_id, offset=offset, expected=expected, found=found)


def _digest_function(digest_type: DigestType, password: bytes) -> Callable[[bytes, bytes], bytes | int]:
    if digest_type is DigestType.CRC32C:
        value, extend = google_crc32c.value, google_crc32c.extend
        return lambda head, payload: extend(value(head), payload)
    if digest_type is DigestType.CRC32:
        crc32 = zlib.crc32
        return lambda head, payload: crc32(payload, crc32(head))
    if digest_type is DigestType.HMAC:
        key = hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()
        keyed = hmac.new(key, digestmod="sha1")
        return lambda head, payload: _mac(keyed, head, payload)
    return lambda _head, _payload: b""


def _mac(keyed: hmac.HMAC, head: bytes, payload: bytes) -> bytes:
    mac = keyed.copy()
    mac.update(head)
    mac.update(payload)
    return mac.digest()
