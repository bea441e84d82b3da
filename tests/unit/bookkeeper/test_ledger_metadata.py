"""Ledger metadata: three versions give one value, damage gives one error, and entries find their bookies."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from offloaderd.bookkeeper.metadata import HEAD, Ensemble, LedgerMetadata, LedgerState, decode_ledger
from offloaderd.bookkeeper.wire.entry import DigestType
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat
from tests.golden import bookkeeper as golden

PATH = "/ledgers/00/0000/L0002"
BOOKIES = ("127.0.0.1:23183", "127.0.0.1:23181", "127.0.0.1:23182")


def message(**changes: Any) -> LedgerMetadataFormat:  # noqa: ANN401 - any field of the message
    """Return the metadata of an open ledger with two ensembles, with other values for some fields."""
    fields: dict[str, Any] = {
        "quorumSize": 2,
        "ensembleSize": 3,
        "length": 0,
        "lastEntryId": -1,
        "state": LedgerMetadataFormat.OPEN,
        "segment": [segment(0, "a:1", "b:1", "c:1"), segment(10, "a:1", "d:1", "c:1")],
    }
    return LedgerMetadataFormat(**{name: value for name, value in (fields | changes).items() if value is not None})


def segment(first: int, *bookies: str) -> LedgerMetadataFormat.Segment:
    """Return an ensemble of the message."""
    return LedgerMetadataFormat.Segment(firstEntryId=first, ensembleMember=bookies)


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def version_3(value: LedgerMetadataFormat) -> bytes:
    """Return a znode's content of version 3."""
    data = value.SerializePartialToString()
    return HEAD + b"3\n" + varint(len(data)) + data


def version_2(value: LedgerMetadataFormat) -> bytes:
    """Return a znode's content of version 2."""
    return HEAD + b"2\n" + text_format.MessageToString(value).encode()


def test_the_java_clients_metadata_is_read() -> None:
    """The vector of a live cluster, field by field; the password is not in the repr."""
    metadata = decode_ledger(golden.LEDGER_2, path=PATH)
    assert metadata == LedgerMetadata(
        format_version=3,
        state=LedgerState.CLOSED,
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        ensembles=(Ensemble(0, BOOKIES),),
        last_entry_id=24,
        length_bytes=2350,
        digest_type=DigestType.CRC32C,
        password=b"pw",
        custom={"component": b"managed-ledger"},
    )
    assert (metadata.closed, metadata.striped, metadata.confirmed_at_least) == (True, True, 24)
    assert "pw" not in repr(metadata)


@given(
    st.builds(
        message,
        quorumSize=st.integers(1, 3),
        state=st.sampled_from([1, 2, 3]),
        length=st.integers(0, 2**63 - 1),
        lastEntryId=st.integers(-1, 2**63 - 1),
        digestType=st.sampled_from([None, 1, 2, 3, 4]),
        password=st.none() | st.binary(max_size=8),
        ackQuorumSize=st.none() | st.just(1),
        ctime=st.none() | st.integers(0, 2**40),
    )
)
@settings(max_examples=60)
def test_versions_2_and_3_say_the_same(value: LedgerMetadataFormat) -> None:
    """The same message as text and as bytes is the same value but for the version."""
    binary, text = decode_ledger(version_3(value), path=PATH), decode_ledger(version_2(value), path=PATH)
    assert (binary.format_version, text.format_version) == (3, 2)
    assert all(
        getattr(binary, name) == getattr(text, name) for name in LedgerMetadata.__slots__ if name != "format_version"
    )
    assert binary.ack_quorum == (value.ackQuorumSize if value.HasField("ackQuorumSize") else value.quorumSize)
    assert (binary.last_entry_id is None) == (value.state != LedgerMetadataFormat.CLOSED)
    assert (binary.length_bytes is None) == (value.state != LedgerMetadataFormat.CLOSED)


V1 = HEAD + b"1\n2\n3\n%d\n0\ta:1\tb:1\tc:1\n10\ta:1\td:1\tc:1\n"


@pytest.mark.parametrize(
    ("content", "state", "last"),
    [
        (V1 % 0, LedgerState.OPEN, None),
        ((V1 % 0).rstrip(b"\n"), LedgerState.OPEN, None),
        (V1 % 0 + b"-102\tCLOSED\n", LedgerState.IN_RECOVERY, None),
        (V1 % 99 + b"24\tCLOSED", LedgerState.CLOSED, 24),
        (V1 % 0 + b"-1\tCLOSED\n", LedgerState.CLOSED, -1),
    ],
)
def test_version_1_is_read(content: bytes, state: LedgerState, last: int | None) -> None:
    """Lines give quorums, ensembles and state; what the version does not store is None or empty."""
    metadata = decode_ledger(content, path=PATH)
    assert (metadata.state, metadata.last_entry_id) == (state, last)
    assert metadata.length_bytes == (None if last is None else 99 if last == 24 else 0)
    assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (3, 2, 2)
    assert metadata.ensembles == (Ensemble(0, ("a:1", "b:1", "c:1")), Ensemble(10, ("a:1", "d:1", "c:1")))
    assert (metadata.digest_type, metadata.password, metadata.ctime_ms, dict(metadata.custom)) == (None, b"", None, {})


def test_fields_of_a_newer_writer_are_passed_over() -> None:
    """Unknown fields of the message are no damage, as text and as bytes; nor are bytes after the message."""
    data = message().SerializeToString() + b"\xf8\x06\x01"
    assert decode_ledger(HEAD + b"3\n" + varint(len(data)) + data + b"more", path=PATH).ensemble_size == 3
    assert decode_ledger(version_2(message()) + b"news: 5 more { a: 1 }", path=PATH).ensemble_size == 3


BROKEN = {
    "no segment": message(segment=[]),
    "too few members": message(segment=[segment(0, "a:1", "b:1")]),
    "too many members": message(segment=[segment(0, "a:1", "b:1", "c:1", "d:1")]),
    "not ascending": message(segment=[segment(5, "a:1", "b:1", "c:1"), segment(5, "a:1", "b:1", "c:1")]),
    "negative": message(segment=[segment(-1, "a:1", "b:1", "c:1")]),
    "a path": message(segment=[segment(0, "a:1", "../x", "c:1")]),
    "reserved": message(segment=[segment(0, "a:1", "readonly", "c:1")]),
    "quorum over ensemble": message(quorumSize=4),
    "ack over quorum": message(ackQuorumSize=3),
    "no quorum": message(quorumSize=0),
    "negative ack": message(ackQuorumSize=-1),
    "closed without last": message(state=LedgerMetadataFormat.CLOSED, lastEntryId=None),
    "closed below -1": message(state=LedgerMetadataFormat.CLOSED, lastEntryId=-2),
    "closed with negative length": message(state=LedgerMetadataFormat.CLOSED, lastEntryId=3, length=-1),
    "no state": message(state=None),
    "no length": message(length=None),
}


@pytest.mark.parametrize("name", BROKEN)
def test_metadata_that_cannot_be_is_refused(name: str) -> None:
    """What contradicts itself is found when it is read, not when an entry is looked for."""
    for content in (version_3(BROKEN[name]), version_2(BROKEN[name])):
        with pytest.raises(CorruptData) as caught:
            decode_ledger(content, path=PATH)
        assert caught.value.key == PATH


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"BookieMetadataFormatVersion",
        HEAD,
        HEAD + b"3",
        HEAD + b"\n",
        HEAD + b"x\n",
        HEAD + b"-3\n",
        HEAD + b"0\n",
        HEAD + b"4\n" + golden.LEDGER_2[len(HEAD) + 2 :],
        HEAD + b"3" * 100 + b"\n",
        b"bookieMetadataFormatVersion\t3\n" + golden.LEDGER_2[len(HEAD) + 2 :],
        golden.LEDGER_2[:-1],
        golden.LEDGER_2[:-2],
        HEAD + b"3\n",
        HEAD + b"3\n\xff\xff\xff\xff\xff\x01",
        HEAD + b"3\n\x80",
        HEAD + b"3\n\x00",
        version_3(message())[:-4] + b"\xff\xff\xff\xff",
        version_3(message()).replace(b"a:1", b"a\xff1"),
        HEAD + b"2\n",
        HEAD + b"2\n\xff",
        version_2(message()) + b"digestType: MD5",
        version_2(message()) + b"digestType: 9",
        HEAD + b"2\n" + b"x {" * 20_000,
        HEAD + b"1\n",
        HEAD + b"1\n2\n3\n0\n",
        HEAD + b"1\n2\n3\nx\n0\ta:1\tb:1\tc:1\n",
        HEAD + b"1\n9999999999\n3\n0\n0\ta:1\tb:1\tc:1\n",
        HEAD + b"1\n2\n3\n99999999999999999999\n0\ta:1\tb:1\tc:1\n",
        HEAD + b"1\n2\n3\n9999999999999999999\n0\ta:1\tb:1\tc:1\n",
        V1 % 0 + b"\n24\tCLOSED",
        V1 % 0 + b"-7\tCLOSED",
        V1 % 0 + b"x\tCLOSED",
        V1 % 0 + b"\xff",
    ],
)
def test_what_is_no_metadata_is_refused(content: bytes) -> None:
    """Other heads, versions and lengths, damaged messages, text that is not the format's."""
    with pytest.raises(CorruptData):
        decode_ledger(content, path=PATH)


def test_an_unknown_digest_type_is_not_taken_for_none() -> None:
    """A number that this version does not know would leave entries unchecked."""
    data = message().SerializeToString() + b"\x38\x05"
    with pytest.raises(CorruptData, match="digest type"):
        decode_ledger(HEAD + b"3\n" + varint(len(data)) + data, path=PATH)


@given(st.sampled_from([b"", HEAD + b"1\n", HEAD + b"2\n", HEAD + b"3\n"]), st.binary(max_size=120))
@settings(max_examples=150)
def test_arbitrary_content_gives_a_value_or_corrupt_data(head: bytes, rest: bytes) -> None:
    """No other error, whatever a node holds."""
    with suppress(CorruptData):
        assert decode_ledger(head + rest, path=PATH).ensembles


@given(st.sampled_from([golden.LEDGER_2, version_2(message()), V1 % 0]), st.integers(0, 10**6), st.integers(0, 255))
@settings(max_examples=150)
def test_a_changed_byte_gives_a_value_or_corrupt_data(content: bytes, place: int, byte: int) -> None:
    """No other error, wherever real content is damaged."""
    damaged = bytearray(content)
    damaged[place % len(content)] = byte
    with suppress(CorruptData):
        assert decode_ledger(bytes(damaged), path=PATH).write_quorum >= 1


def test_entries_go_round_the_ensemble() -> None:
    """The replicas of an entry begin at its absolute id modulo the ensemble size, in whichever ensemble."""
    metadata = decode_ledger(version_3(message()), path=PATH)
    assert [metadata.replicas(entry) for entry in (0, 1, 2, 9)] == [
        ("a:1", "b:1"),
        ("b:1", "c:1"),
        ("c:1", "a:1"),
        ("a:1", "b:1"),
    ]
    assert metadata.replicas(10) == ("d:1", "c:1")
    assert metadata.replicas(2**63 - 1)


def test_ensembles_have_their_ranges() -> None:
    """An ensemble reaches to the next one, the last one to the end of a closed ledger, or nobody knows."""
    metadata = decode_ledger(version_3(message()), path=PATH)
    first, last = metadata.ensembles
    assert [metadata.ensemble_for(entry) for entry in (0, 9, 10, 99)] == [first, first, last, last]
    assert (metadata.last_entry_of(first), metadata.last_entry_of(last)) == (9, None)
    assert metadata.confirmed_at_least == 9
    closed = decode_ledger(version_3(message(state=LedgerMetadataFormat.CLOSED, lastEntryId=12, length=5)), path=PATH)
    assert closed.last_entry_of(closed.ensembles[1]) == 12
    with pytest.raises(InvalidInput):
        metadata.last_entry_of(Ensemble(0, ()))


def test_an_entry_below_all_ensembles_is_nowhere() -> None:
    """A ledger whose first ensemble begins later has no bookies for what is before it."""
    metadata = decode_ledger(version_3(message(segment=[segment(5, "a:1", "b:1", "c:1")])), path=PATH)
    for entry_id in (4, -1):
        with pytest.raises(InvalidInput):
            metadata.replicas(entry_id)
    assert metadata.replicas(5) == ("c:1", "a:1")


def test_a_fresh_ledger_has_confirmed_nothing() -> None:
    """Only entries below the last ensemble are known to be confirmed."""
    metadata = decode_ledger(version_3(message(segment=[segment(0, "a:1", "b:1", "c:1")], quorumSize=3)), path=PATH)
    assert metadata.confirmed_at_least == -1
    assert not metadata.striped
    assert not metadata.closed
