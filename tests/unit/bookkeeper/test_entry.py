"""Digests: what the Java client wrote verifies, every flipped bit is found, and lengths tell gaps and duplicates."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloaderd.bookkeeper.wire.entry import BadEntry, BadLength, DigestType, Entry, EntryChecker
from offloaderd.core.errors import CorruptData
from tests.golden import bookkeeper as golden
from tests.loops import both_loops
from tests.unit.bookkeeper.entries import master_key, package, package_all

pytestmark = pytest.mark.usefixtures(both_loops.__name__)

KINDS = st.sampled_from(DigestType)
PAYLOADS = st.lists(st.binary(max_size=40), min_size=1, max_size=6)
PROTECTED = [DigestType.CRC32, DigestType.HMAC, DigestType.CRC32C]


@pytest.mark.parametrize(
    ("ledger_id", "kind", "stored"),
    [
        (1, DigestType.CRC32, golden.ENTRY_CRC32),
        (2, DigestType.CRC32C, golden.ENTRY_CRC32C),
        (0, DigestType.HMAC, golden.ENTRY_HMAC),
    ],
)
def test_entries_of_the_java_client_verify(ledger_id: int, kind: DigestType, stored: bytes) -> None:
    """The vectors of live bookies give payload, LAC and length, alone or in a run, asked for as the last one or not."""
    checker = EntryChecker(ledger_id, kind, golden.PASSWORD)
    expected = Entry(3, 2, 82, golden.PAYLOAD)
    assert checker.check(stored, 3) == checker.check(stored, None) == expected
    run = checker.check_run(3, [stored])
    assert (run.payloads, run.lengths, run.lac, run.error) == ([golden.PAYLOAD], [82], 2, None)


def test_digest_sizes() -> None:
    """The digests take 8, 20, 4 and 0 bytes."""
    assert [kind.size_bytes for kind in DigestType] == [8, 20, 4, 0]
    assert [kind.value for kind in DigestType] == [1, 2, 3, 4]


@given(KINDS, st.integers(0, 2**63 - 1), st.integers(0, 2**62), PAYLOADS, st.binary(max_size=5))
@settings(max_examples=80)
def test_what_was_packaged_is_read(
    kind: DigestType, ledger_id: int, first: int, payloads: list[bytes], password: bytes
) -> None:
    """Every entry comes back with its numbers, one by one as in a run, and the lengths add up."""
    stored = package_all(kind, ledger_id, first, payloads, before=7, password=password)
    checker = EntryChecker(ledger_id, kind, password)
    run = checker.check_run(first, stored)
    assert run.error is None
    assert run.payloads == payloads
    assert run.lac == first + len(payloads) - 2
    run.check_lengths(7)
    run.check_lengths()
    singles = [checker.check(entry, first + index) for index, entry in enumerate(stored)]
    assert [entry.payload for entry in singles] == payloads
    assert [entry.length for entry in singles] == run.lengths


@pytest.mark.parametrize("kind", PROTECTED)
@given(st.data())
@settings(max_examples=60)
def test_a_flipped_bit_is_found(kind: DigestType, data: st.DataObject) -> None:
    """One bit anywhere in header, digest or payload makes a BadEntry that names ledger and entry."""
    stored = bytearray(package(kind, 5, 9, data.draw(st.binary(max_size=30)), password=b"p"))
    bit = data.draw(st.integers(0, len(stored) * 8 - 1))
    stored[bit // 8] ^= 1 << bit % 8
    checker = EntryChecker(5, kind, b"p")
    with pytest.raises(
        BadEntry, match=rf"ledger 5, entry 9 at byte 32: expected {kind.name} [0-9a-f]+, found {kind.name}"
    ):
        checker.check(bytes(stored), 9)
    with pytest.raises(BadEntry):
        checker.check(bytes(stored), None)
    error = checker.check_run(9, [bytes(stored)]).error
    assert error is not None
    assert (error.ledger_id, error.entry_id, error.offset) == (5, 9, 32)


@pytest.mark.parametrize("kind", DigestType)
@given(st.binary(max_size=80), st.integers(0, 3))
@settings(max_examples=40)
def test_arbitrary_bytes_are_an_entry_or_a_bad_one(kind: DigestType, stored: bytes, first: int) -> None:
    """Noise never gets further than BadEntry, and a run of noise never raises."""
    checker = EntryChecker(5, kind)
    run = checker.check_run(first, [stored])
    if run.error is None:
        assert run.payloads == [checker.check(stored, first).payload]
        return
    assert run.payloads == []
    with pytest.raises(BadEntry) as caught:
        checker.check(stored, first)
    assert str(caught.value) == str(run.error)


@pytest.mark.parametrize("kind", DigestType)
@pytest.mark.parametrize(
    ("numbers", "offset", "expected"),
    [
        ((6, 9, 8, 3), 0, "ledger 5"),
        ((5, 8, 8, 3), 8, "entry 9"),
        ((5, 9, -2, 3), 16, "a LAC of -1 or more"),
        ((5, 9, 8, 2), 24, "a length of 3 or more"),
    ],
)
def test_a_sound_entry_that_is_another_one_is_refused(
    kind: DigestType, numbers: tuple[int, int, int, int], offset: int, expected: str
) -> None:
    """A right digest over wrong numbers is named field by field."""
    ledger_id, entry_id, lac, length = numbers
    stored = package(kind, ledger_id, entry_id, b"abc", lac=lac, length=length)
    with pytest.raises(BadEntry) as caught:
        EntryChecker(5, kind).check(stored, 9)
    assert (caught.value.offset, caught.value.expected) == (offset, expected)
    error = EntryChecker(5, kind).check_run(9, [stored]).error
    assert error is not None
    assert str(error) == str(caught.value)


def test_the_last_entry_has_any_id_that_can_be() -> None:
    """Asked for as the last one, an entry may have any id but a negative one; the LAC is no measure of it."""
    checker = EntryChecker(5, DigestType.CRC32C)
    assert checker.check(package(DigestType.CRC32C, 5, 4, b"", lac=29), None).lac == 29
    with pytest.raises(BadEntry, match="expected entry 0, found -3"):
        checker.check(package(DigestType.CRC32C, 5, -3, b"", lac=0), None)


@pytest.mark.parametrize("kind", DigestType)
def test_a_short_entry_is_refused(kind: DigestType) -> None:
    """Header and digest have to be there whole; the payload may be empty."""
    stored = package(kind, 5, 9, b"")
    assert EntryChecker(5, kind).check(stored, 9).payload == b""
    with pytest.raises(BadEntry, match=f"expected {len(stored)} bytes or more, found {len(stored) - 1}"):
        EntryChecker(5, kind).check(stored[:-1], 9)


def test_a_wrong_password_is_found() -> None:
    """HMAC depends on the password."""
    with pytest.raises(BadEntry, match="HMAC"):
        EntryChecker(0, DigestType.HMAC, b"no").check(golden.ENTRY_HMAC, 3)


def test_the_upper_half_of_a_crc32_counts() -> None:
    """CRC32 is stored in 8 bytes of which the first four have to be zero."""
    stored = bytearray(package(DigestType.CRC32, 5, 9, b"abc"))
    stored[32] = 1
    with pytest.raises(BadEntry):
        EntryChecker(5, DigestType.CRC32).check(bytes(stored), 9)


def test_the_verified_prefix_is_kept() -> None:
    """A bad entry in the middle ends the run; what came before it may be used, what comes after it may not."""
    stored = package_all(DigestType.CRC32C, 5, 10, [b"a", b"bb", b"ccc", b"d"])
    stored[2] = stored[2][:-1] + b"x"
    run = EntryChecker(5, DigestType.CRC32C).check_run(10, stored)
    assert run.payloads == [b"a", b"bb"]
    assert run.lac == 10
    assert run.error is not None
    assert (run.error.entry_id, run.error.offset) == (12, 32)
    run.check_lengths(0)


def test_the_greatest_lac_counts() -> None:
    """Whichever entry has it: a later one may have an older LAC."""
    stored = [
        package(DigestType.CRC32C, 5, entry_id, b"a", lac=lac) for entry_id, lac in enumerate((2, 9, 4), start=10)
    ]
    run = EntryChecker(5, DigestType.CRC32C).check_run(10, stored)
    assert (run.error, run.lac) == (None, 9)


def test_an_entry_out_of_place_ends_the_run() -> None:
    """Entries count up by one from the first."""
    stored = package_all(DigestType.CRC32C, 5, 10, [b"a", b"bb"])
    error = EntryChecker(5, DigestType.CRC32C).check_run(10, stored[::-1]).error
    assert error is not None
    assert (error.entry_id, error.offset, error.found) == (10, 8, 11)


@pytest.mark.parametrize(("ledger_id", "first"), [(5, 2**63 - 1), (5, 2**63), (2**63, 2**63 - 1)])
def test_no_entry_is_behind_the_greatest_id(ledger_id: int, first: int) -> None:
    """Ids have 63 bits: none goes on from the greatest one at the least, and none is asked for by a larger number."""
    stored = [package(DigestType.CRC32C, 5, entry_id, b"a", lac=0) for entry_id in (2**63 - 1, -(2**63))]
    run = EntryChecker(ledger_id, DigestType.CRC32C).check_run(first, stored)
    assert run.error is not None
    assert len(run.payloads) == ((ledger_id, first) == (5, 2**63 - 1))


@pytest.mark.parametrize(("before", "wrong"), [(1, 10), (-1, 10), (0, 12)])
def test_a_gap_in_the_lengths_is_loud(before: int, wrong: int) -> None:
    """A length that does not follow is named with its entry: at the seam to what came before, or inside the run."""
    stored = package_all(DigestType.CRC32C, 5, 10, [b"a", b"bb"])
    stored.append(package(DigestType.CRC32C, 5, 12, b"c", length=4 if before else 5))
    run = EntryChecker(5, DigestType.CRC32C).check_run(10, stored)
    assert run.error is None
    with pytest.raises(BadLength) as caught:
        run.check_lengths(before)
    assert (caught.value.ledger_id, caught.value.entry_id, caught.value.offset) == (5, wrong, 24)
    if not before:
        with pytest.raises(BadLength):
            run.check_lengths()


def test_an_empty_run_has_no_lengths() -> None:
    """A run of nothing follows anything."""
    run = EntryChecker(5, DigestType.CRC32C).check_run(10, [])
    run.check_lengths(99)
    assert (run.payloads, run.lac, run.error) == ([], -1, None)


def test_bad_entries_are_corrupt_data() -> None:
    """Whoever knows only the tree raises the alarm."""
    assert issubclass(BadLength, BadEntry)
    assert issubclass(BadEntry, CorruptData)


def test_keys_are_made_of_the_password() -> None:
    """The writer's key, which this program never sends: tests that play a writer have it right."""
    assert master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
