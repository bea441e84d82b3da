"""The compiled loops give what those in Python give, on sound entries, and leave all others to them."""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloaderd.bookkeeper.wire import v2
from offloaderd.bookkeeper.wire.entry import BadEntry, DigestType, EntryChecker
from offloaderd.bookkeeper.wire.protocol import BadAnswer
from offloaderd.core import native
from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES, decode_entries, frame
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import Position
from offloaderd.format.pulsar.messages import PlainBatch, decode_columns
from tests.loops import NOT_BUILT, in_python
from tests.unit.bookkeeper import wire
from tests.unit.bookkeeper.entries import package, package_all
from tests.unit.format.test_pulsar_message import batch, entry, sized

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

pytestmark = pytest.mark.skipif(not native.IN_USE, reason=NOT_BUILT)

CHECKS = native.stored_payloads([], 0, 0) is not None
needs_crc = pytest.mark.skipif(native.IN_USE and not CHECKS, reason="this processor has no instruction for CRC32C")

ID_MAX = 2**63 - 1
PAYLOADS = st.lists(st.binary(max_size=40), max_size=6)
IDS = st.integers(0, ID_MAX - 10) | st.integers(0, 3)
UNSIGNED = st.integers(0, 2**64 - 1) | st.integers(0, 2)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "partition_key": st.text(max_size=3),
    "event_time": UNSIGNED,
    "ordering_key": st.binary(max_size=3),
    "sequence_id": UNSIGNED,
    "null_value": st.booleans(),
    "null_partition_key": st.booleans(),
    "compacted_out": st.just(False),
    "partition_key_b64_encoded": st.just(False),
    "properties": st.lists(
        st.fixed_dictionaries({"key": st.text("abé", max_size=2), "value": st.text(max_size=3)}), max_size=3
    ),
}
MESSAGES = st.lists(
    st.tuples(st.binary(max_size=5), st.fixed_dictionaries({}, optional=FIELDS)), min_size=1, max_size=5
)


class Damage:
    """Changes bytes as a damaged disk or a faulty writer would: a byte, a cut, bytes that are too many."""

    def __init__(self, data: st.DataObject) -> None:
        self._draw = data.draw

    def __call__(self, sound: bytes) -> bytes:
        """Return bytes that may be other ones."""
        changed = bytearray(sound)
        match self._draw(st.sampled_from(["none", "byte", "cut", "more"])):
            case "byte" if changed:
                changed[self._draw(st.integers(0, len(changed) - 1))] = self._draw(st.integers(0, 255))
            case "cut":
                del changed[self._draw(st.integers(0, len(changed))) :]
            case "more":
                changed += self._draw(st.binary(min_size=1, max_size=40))
        return bytes(changed)


def of_both(call: Callable[[], T]) -> tuple[T | str, T | str]:
    """Return what a call gives with the compiled loops and with those in Python, errors as their text."""

    def outcome() -> T | str:
        try:
            return call()
        except (OffloaderError, BadAnswer) as error:
            return f"{type(error).__name__}: {error}"

    compiled = outcome()
    with pytest.MonkeyPatch.context() as patch:
        in_python(patch)
        return compiled, outcome()


@given(IDS, PAYLOADS, st.data())
@settings(max_examples=300)
def test_frames(first: int, payloads: list[bytes], data: st.DataObject) -> None:
    """Whatever the bytes, their ends, the first id and the count are."""
    sound = b"".join(frame(first, payloads))
    assert native.framed_payloads(sound, 0, len(sound), first, len(payloads)) == payloads
    found = Damage(data)(sound)
    start = data.draw(st.just(0) | st.integers(0, len(found)))
    end = data.draw(st.just(len(found)) | st.integers(0, len(found)))
    count = data.draw(st.just(len(payloads)) | st.integers(0, 8))
    wanted = data.draw(st.just(first) | IDS)

    def decoded() -> list[bytes]:
        return decode_entries(found, start=start, end=end, first_entry_id=wanted, count=count, key="k", at=0)

    compiled, python = of_both(decoded)
    assert compiled == python


@given(IDS, st.lists(st.binary(min_size=32, max_size=50), min_size=1, max_size=5), st.data())
@settings(max_examples=300)
def test_answers_to_batch_reads(first: int, entries: list[bytes], data: st.DataObject) -> None:
    """Whatever the bookie has sent."""
    framed = wire.v2_batch(3, 5, first, entries)
    sound = framed[4:]
    assert native.batch_entries(sound, v2.BATCH_ANSWER.size) == entries
    found = Damage(data)(sound)
    answer = len(found).to_bytes(4, "big") + found
    compiled, python = of_both(lambda: list(v2.Decoder().feed(answer)))
    assert compiled == python


@given(st.sampled_from(DigestType), st.integers(0, ID_MAX), IDS, PAYLOADS, st.data())
@settings(max_examples=300)
def test_stored_entries(
    digest: DigestType, ledger_id: int, first: int, payloads: list[bytes], data: st.DataObject
) -> None:
    """Whatever a replica has: the same run, up to the same entry, with the same error."""
    entries = package_all(digest, ledger_id, first, payloads, before=data.draw(st.integers(0, 2**40)), password=b"p")
    if digest is DigestType.CRC32C and CHECKS:
        found = native.stored_payloads(entries, ledger_id, first)
        assert found is not None
        assert found[0] == payloads
        assert found[2] == (first + len(payloads) - 2 if payloads else -1)
    if entries:
        number = data.draw(st.integers(0, len(entries) - 1))
        entries[number] = Damage(data)(entries[number])
    wanted_ledger = data.draw(st.just(ledger_id) | st.integers(0, ID_MAX))
    wanted = data.draw(st.just(first) | IDS)
    checker = EntryChecker(wanted_ledger, digest, b"p")

    def run() -> tuple[object, ...]:
        one = checker.check_run(wanted, list(entries))
        return one.first_entry_id, one.payloads, one.lengths, one.lac, _said(one.error)

    compiled, python = of_both(run)
    assert compiled == python


def _said(error: BadEntry | None) -> str:
    return str(error)


def columns_of_both(content: bytes, count: int, **fields: Any) -> tuple[object, object]:  # noqa: ANN401 - what protobuf takes
    """Return what becomes of an entry with a batch."""
    payload = entry(content, checksum=False, num_messages_in_batch=count, **fields)
    return of_both(lambda: decode_columns(Position(1, 2), payload, batch_max=100))


@given(MESSAGES, st.data())
@settings(max_examples=300)
def test_batches_of_messages(messages: list[tuple[bytes, dict[str, Any]]], data: st.DataObject) -> None:
    """Whatever a producer has stored, and however many it says."""
    sound = batch(*messages)
    found = native.batch_columns(sound, len(messages), 5)
    assert found is not None
    assert found[0] == [None if fields.get("null_value") else value for value, fields in messages]
    compiled, python = columns_of_both(sound, len(messages))
    assert isinstance(compiled, PlainBatch)
    assert compiled == python
    count = data.draw(st.just(len(messages)) | st.integers(-1, 8))
    compiled, python = columns_of_both(Damage(data)(sound), count)
    assert compiled == python


SIZE = b"\x18\x02"  # payload_size = 2
HEADS = {
    "no size": b"\x12\x01k",
    "a size in more bytes than it needs": b"\x18\x82\x00",
    "a size of eleven bytes": b"\x18" + b"\x82" + b"\x80" * 9 + b"\x00",
    "a size beyond 64 bits": b"\x18" + b"\xff" * 9 + b"\x03",
    "a size beyond 32 bits": b"\x18\x82\x80\x80\x80\x10",
    "a size that is negative": b"\x18" + b"\xfe" + b"\xff" * 8 + b"\x01",
    "a size beyond the content": b"\x18\x03",
    "a size that ends with the head": b"\x18\x82",
    "two sizes": SIZE + SIZE,
    "another field": SIZE + b"\x58\x01",
    "a field of two bytes": SIZE + b"\x80\x01\x01",
    "a field in more bytes than it needs": b"\x98\x00\x02",
    "field zero": SIZE + b"\x02\x01k",
    "a group": SIZE + b"\x5b\x5c",
    "a size as a text": b"\x1a\x01\x02",
    "a key that is a number": SIZE + b"\x10\x01",
    "two keys": SIZE + b"\x12\x01a\x12\x01b",
    "a key in base64": SIZE + b"\x12\x04AAAA\x30\x01",
    "a key that is no text": SIZE + b"\x12\x01\xff",
    "a key that is a surrogate": SIZE + b"\x12\x03\xed\xa0\x80",
    "a key beyond the head": SIZE + b"\x12\x02k",
    "a key whose size is as large as can be": SIZE + b"\x12" + b"\xff" * 9 + b"\x01k",
    "a flag of two": SIZE + b"\x48\x02",
    "left out by compaction": SIZE + b"\x20\x01",
    "a property without a value": SIZE + b"\x0a\x03\x0a\x01k",
    "a property without a key": SIZE + b"\x0a\x03\x12\x01v",
    "a property with two keys": SIZE + b"\x0a\x09\x0a\x01a\x0a\x01b\x12\x01v",
    "a property with another field": SIZE + b"\x0a\x08\x0a\x01a\x12\x01v\x18\x01",
    "a property that is no text": SIZE + b"\x0a\x06\x0a\x01a\x12\x01\xff",
    "a property beyond the head": SIZE + b"\x0a\x07\x0a\x01a\x12\x01v",
    "a property with a text beyond it": SIZE + b"\x0a\x06\x0a\x01a\x12\x02vw",
}


@pytest.mark.parametrize("what", HEADS)
def test_heads_of_messages_that_are_left_to_python(what: str) -> None:
    """Damaged ones, and those that producers hardly write: nothing of them is guessed."""
    content = batch((b"first", {})) + sized(HEADS[what]) + b"xy"
    assert native.batch_columns(content, 2, 0) is None
    compiled, python = columns_of_both(content, 2)
    assert compiled == python


def test_batches_that_could_lead_out_of_the_bytes() -> None:
    """Lengths and counts that are as large as can be, or negative, are no messages; every cut is none either."""
    content = batch((b"one", {"partition_key": "k", "properties": [{"key": "a", "value": "b"}]}), (b"two", {}))
    assert native.batch_columns(content, 2, 5) == (
        [b"one", b"two"],
        [b"k", None],
        [(("a", "b"),), ()],
        [5, 6],
        [None] * 2,
    )
    for cut in range(len(content)):
        assert native.batch_columns(content[:cut], 2, 5) is None
        assert native.batch_columns(content[cut + 1 :], 2, 5) is None
    for count in (1, 3, -1, 2**62, 2**63 - 1, -(2**63)):
        assert native.batch_columns(content, count, 5) is None
    for length in (-1, 2**31 - 1, -(2**31), len(content) - 3):
        assert native.batch_columns(length.to_bytes(4, "big", signed=True) + content[4:], 2, 5) is None
    assert native.batch_columns(b"", 0, 5) == ([], [], [], [], [])


def test_sequence_ids_at_their_ends() -> None:
    """Those beyond 63 bits are counted in Python, which has no end."""
    content = batch((b"", {}), (b"", {}))
    for first in (0, ID_MAX - 2, ID_MAX - 1, ID_MAX, 2**64 - 1):
        compiled, python = columns_of_both(content, 2)
        assert compiled == python
        found = native.batch_columns(content, 2, first)
        assert found is None if first > ID_MAX - 2 else found is not None and found[3] == [first, first + 1]


@needs_crc
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 63, 4096, 16 * 1024 + 1])
def test_checksums_of_all_lengths(size: int) -> None:
    """Words of eight bytes, and what is left of them."""
    (entry,) = package_all(DigestType.CRC32C, 1, 0, [(bytes(range(256)) * 65)[:size]], before=0)
    found = native.stored_payloads([entry], 1, 0)
    assert found is not None
    assert len(found[0][0]) == size
    assert native.stored_payloads([entry[:-1] + bytes([entry[-1] ^ 1])], 1, 0) is None


def test_frames_that_could_lead_out_of_the_bytes() -> None:
    """Lengths, ends and counts that are as large as can be, or negative, are no entries."""
    sound = b"".join(frame(0, [b"abc", b""]))
    assert native.framed_payloads(sound, 0, len(sound), 0, 2) == [b"abc", b""]
    for start, end, count in [
        (0, len(sound), 2**62),
        (0, len(sound), -1),
        (-1, len(sound), 2),
        (-1, -1, 0),
        (0, len(sound) + 1, 2),
        (2**62, 2**62, 0),
        (0, ENTRY_OVERHEAD_BYTES - 1, 1),
    ]:
        assert native.framed_payloads(sound, start, end, 0, count) is None
        assert native.framed_payloads(sound, start, end, -(2**63), count) is None
    for length in (-1, 4, 2**31 - 1, -(2**31)):
        assert native.framed_payloads(length.to_bytes(4, "big", signed=True) + sound[4:], 0, len(sound), 0, 2) is None
    assert native.batch_entries(b"\x7f\xff\xff\xff" + bytes(40), 0) is None
    assert native.batch_entries(b"\xff\xff\xff\xff" + bytes(40), 0) is None
    assert native.batch_entries(bytes(4), -1) is None
    assert native.batch_entries(bytes(4), -(2**62)) is None
    assert native.batch_entries(bytes(4), 5) is None


def test_numbers_that_no_entry_has_are_left_to_python() -> None:
    """Ids and counts beyond 64 bits are none that a block could have, and no error of their own."""
    for number in (2**63, -(2**63) - 1):
        assert native.framed_payloads(b"", 0, 0, number, 0) is None
        assert native.framed_payloads(b"", 0, 0, 0, number) is None
        assert native.batch_entries(b"", number) is None
        assert native.stored_payloads([], number, 0) is None
        assert native.stored_payloads([], 0, number) is None
        assert native.batch_columns(b"", number, 0) is None
        assert native.batch_columns(b"", 0, number) is None


@needs_crc
def test_an_entry_that_ends_inside_its_digest() -> None:
    """The zero that Python has behind all bytes is no part of them."""
    empty = (package(DigestType.CRC32C, 1, 0, b"", length=length) for length in range(2**16))
    cut = next(stored[:-1] for stored in empty if stored[-1] == 0)
    assert native.stored_payloads([cut], 1, 0) is None


@needs_crc
def test_nothing_is_kept() -> None:
    """Neither of sound entries nor of others: a thousand calls of each leave no more memory taken than there was."""
    payloads = [bytes(20)] * 10
    frames = b"".join(frame(0, payloads))
    stored = package_all(DigestType.CRC32C, 1, 0, payloads, before=1000)
    answer = b"".join(len(one).to_bytes(4, "big") + one for one in stored)
    pair = {"key": "a", "value": "b"}
    messages = batch(*[(b"data", {"partition_key": "é", "event_time": 2**40, "properties": [pair, pair]})] * 10)

    def use() -> None:
        assert native.batch_columns(messages, 10, 2**40)
        assert native.batch_columns(messages, 9, 2**40) is None
        assert native.batch_columns(messages[:-1] + b"\xff", 10, 2**63) is None
        assert native.batch_columns(messages + sized(HEADS["a property that is no text"]) + b"xy", 11, 0) is None
        assert native.batch_columns(messages + sized(HEADS["a key that is no text"]) + b"xy", 11, 0) is None
        assert native.framed_payloads(frames, 0, len(frames), 0, 10)
        assert native.framed_payloads(frames, 0, len(frames) - 1, 0, 10) is None
        assert native.framed_payloads(frames, 0, len(frames), 2**63, 10) is None
        assert native.batch_entries(answer, 0)
        assert native.batch_entries(answer[:-1], 0) is None
        assert native.stored_payloads(stored, 1, 0)
        assert native.stored_payloads([*stored, stored[0]], 1, 0) is None
        with pytest.raises(TypeError):
            native.stored_payloads([*stored, None], 1, 0)  # type: ignore[list-item]

    use()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(1000):
        use()
    gc.collect()
    assert sys.getallocatedblocks() - before < 1000


@needs_crc
def test_a_list_that_becomes_shorter_meanwhile() -> None:
    """Python 3.11 collects garbage where a list is made, and what it runs then could change the list that is read."""
    entries = [bytes(40)]
    kept: list[list[object]] = []

    def clear(_phase: str, _info: dict[str, int]) -> None:
        entries.clear()

    thresholds = gc.get_threshold()
    gc.disable()
    gc.set_threshold(1)
    gc.callbacks.append(clear)
    kept += [[] for _ in range(1000)]  # more than Python keeps for later use, so a further list is a new one
    try:
        with contextlib.suppress(IndexError):  # later versions collect at other times
            gc.enable()
            assert native.stored_payloads(entries, 0, 0) in (None, ([], [], -1))
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(clear)
    assert not entries or sys.version_info >= (3, 12)


def test_arguments_of_other_types_are_refused() -> None:
    """Nothing but bytes is read."""
    with pytest.raises(TypeError):
        native.framed_payloads(bytearray(12), 0, 12, 0, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        native.batch_entries(memoryview(b""), 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        native.batch_columns(bytearray(), 0, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError) if CHECKS else contextlib.nullcontext():
        native.stored_payloads([bytearray(40)], 0, 0)  # type: ignore[list-item]
    with pytest.raises(TypeError):
        native.stored_payloads((), 0, 0)  # type: ignore[arg-type]
