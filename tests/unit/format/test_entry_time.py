"""Times and indexes of entries: as Pulsar's seek sees them, one by one and by the block."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.format.pb.pulsar.messages_pb2 import MessageMetadata
from offloaderd.format.pulsar import broker_entry
from offloaderd.format.pulsar.entry_time import EntryTime, Survey, survey, time_of

NOW = 1_700_000_000_000
UINT64 = 2**64 - 1


def message(
    publish_time: int = NOW, *, sequence_id: int = 7, producer: str = "standalone-0-1", checksum: bool = True
) -> bytes:
    """Return an entry as a producer sends it."""
    metadata = MessageMetadata(
        producer_name=producer, sequence_id=sequence_id, publish_time=publish_time, partition_key="k"
    ).SerializeToString()
    return (b"\x0e\x01abcd" if checksum else b"") + len(metadata).to_bytes(4, "big") + metadata + b"content"


def brute_force(payloads: list[bytes]) -> Survey:
    """Return what a survey has to say, entry by entry."""
    found = [time_of(payload) for payload in payloads]
    times = [one.time_ms for one in found if one.time_ms is not None]
    indexes = [one.message_index for one in found if one.message_index is not None]
    untimed = len(found) - len(times)
    return Survey(min(times, default=None), max(times, default=None), untimed, max(indexes, default=None))


numbers = st.one_of(
    st.integers(NOW - 50, NOW + 50), st.integers(0, UINT64), st.sampled_from([0, 127, 128, 2**35 - 1, 2**35, 2**42])
)
messages = st.builds(
    message,
    numbers,
    sequence_id=numbers,
    producer=st.sampled_from(["", "p", "é" * 40, "x" * 127, "x" * 128]),
    checksum=st.booleans(),
)
heads = st.builds(
    lambda time, index, rest: broker_entry.encode_head(broker_timestamp=time, index=index) + rest,
    st.none() | numbers,
    st.none() | numbers,
    messages | st.binary(max_size=20),
)


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """Draw an entry that is cut short, or has one byte that is another."""
    entry = bytearray(draw(heads | messages))
    at = draw(st.integers(0, len(entry) - 1))
    if draw(st.booleans()):
        return bytes(entry[:at])
    entry[at] = draw(st.integers(0, 255))
    return bytes(entry)


entries = st.one_of(heads, messages, spoilt(), st.binary(max_size=30))


@given(payloads=st.lists(entries, max_size=8) | st.lists(heads, max_size=8) | st.lists(messages, max_size=8))
def test_a_survey_says_what_its_entries_say(payloads: list[bytes]) -> None:
    """However brokers and producers write, and whatever else there is: the short ways change nothing."""
    assert survey(payloads) == brute_force(payloads)


@st.composite
def one_spoilt(draw: st.DrawFn) -> list[bytes]:
    """Draw entries whose heads are alike, as neighbours' are, of which one has another byte in its head."""
    found = [bytearray(broker_entry.encode_head(broker_timestamp=NOW + n, index=300 + n) + message()) for n in range(4)]
    found[draw(st.integers(0, 3))][draw(st.integers(0, 16))] = draw(st.integers(0, 255))
    return [bytes(one) for one in found]


@given(payloads=one_spoilt())
def test_one_head_among_others_that_are_alike_is_not_taken_for_one_of_them(payloads: list[bytes]) -> None:
    """Heads of one length are compared with each other: whichever byte is another, it changes what is read, or not."""
    assert survey(payloads) == brute_force(payloads)


@given(time=st.none() | numbers, index=st.none() | numbers, published=numbers)
def test_the_brokers_clock_counts_before_the_producers(time: int | None, index: int | None, published: int) -> None:
    """The publish time counts only where the broker noted none."""
    payload = broker_entry.encode_head(broker_timestamp=time, index=index) + message(published)
    assert time_of(payload) == EntryTime(published if time is None else time, index)
    assert time_of(message(published)) == EntryTime(published, None)


HEAD = broker_entry.encode_head(broker_timestamp=NOW, index=5)


@given(
    count=st.sampled_from([2, 3, 40, 511, 512, 513, 514, 1024, 1025, 1030]),
    at=st.floats(0, 1),
    time=st.integers(-300, 2000),
    index=st.none() | st.integers(-300, 2000),
    last_byte=st.integers(0, 255),
)
def test_a_number_that_falls_among_many_that_ascend_is_noticed(
    count: int, at: float, time: int, index: int | None, last_byte: int
) -> None:
    """The first and the last entry tell of all only where numbers do not fall, wherever among them one does."""
    odd, begin = round(at * (count - 1)), 2**14 + 400
    times, indexes = [NOW + n for n in range(count)], [begin + n if index is not None else None for n in range(count)]
    times[odd], indexes[odd] = NOW + time, None if index is None else begin + index
    payloads = [
        broker_entry.encode_head(broker_timestamp=time, index=index) + b"rest"
        for time, index in zip(times, indexes, strict=True)
    ]
    assert survey(payloads) == brute_force(payloads)
    assert survey(payloads[::-1]) == brute_force(payloads[::-1])
    head = bytearray(payloads[odd])
    head[len(head) - len(b"rest") - 1] = last_byte
    payloads[odd] = bytes(head)
    assert survey(payloads) == brute_force(payloads)


@pytest.mark.parametrize("at", range(4))
def test_an_entry_without_bytes_is_told_from_its_neighbours(at: int) -> None:
    """It leaves no gap between their heads, which are alike and ascend."""
    payloads = [broker_entry.encode_head(broker_timestamp=NOW + n, index=300 + n) for n in range(4)]
    payloads[at] = b""
    assert survey(payloads) == brute_force(payloads)


def test_numbers_of_more_than_64_bits_are_no_order() -> None:
    """protobuf drops what is above 64 bits, so of two numbers the one with the larger bytes may be the smaller one."""
    payloads = [b"\x0e\x02\x00\x00\x00\x0b\x08" + b"\xff" * 9 + bytes([top]) for top in (1, 2)]
    assert survey(payloads) == brute_force(payloads)
    assert survey(payloads).time_min == 2**63 - 1


def test_what_is_no_property_takes_no_time_from_a_message() -> None:
    """Only the fields that Pulsar requires are read, of one message as of many."""
    entry = message().replace(b"2\x01k", b'"\x01k')
    assert entry != message()
    assert time_of(entry) == EntryTime(NOW, None)
    assert survey([message(), entry]) == brute_force([message(), entry])


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        pytest.param(HEAD + message(), EntryTime(NOW, 5), id="whole"),
        pytest.param(HEAD, EntryTime(NOW, 5), id="nothing but a head"),
        pytest.param(HEAD[:-1], EntryTime(None, None), id="cut short"),
        pytest.param(HEAD[:5], EntryTime(None, None), id="cut in its size"),
        pytest.param(b"\x0e\x02\x00\x00\x00\x7f" + HEAD[6:], EntryTime(None, None), id="a size beyond the entry"),
        pytest.param(b"\x0e\x02\xff\xff\xff\xff" + HEAD[6:], EntryTime(None, None), id="a negative size"),
        pytest.param(
            b"\x0e\x02\x00\x00\x00\x0b" + HEAD[6:] + b"\x1a\x00" + message(), EntryTime(NOW, 5), id="unknown fields"
        ),
        pytest.param(b"\x0e\x02\x00\x00\x00\x00" + message(3), EntryTime(3, None), id="an empty head"),
        pytest.param(b"", EntryTime(None, None), id="empty"),
        pytest.param(b'{"flight": 1}', EntryTime(None, None), id="no message"),
        pytest.param(message()[:-20], EntryTime(None, None), id="a message cut in its metadata"),
    ],
)
def test_times_of_odd_entries(payload: bytes, expected: EntryTime) -> None:
    """What brokers cut short, extend or leave out is no error; bytes that tell no time have none."""
    assert time_of(payload) == expected
    assert survey([payload, HEAD + message()]) == brute_force([payload, HEAD + message()])


def test_a_number_that_reaches_into_the_next_head_is_noticed() -> None:
    """Heads are read together: one that is not whole must not take from its neighbour."""
    cut = b"\x0e\x02\x00\x00\x00\x02\x08\x85"
    assert time_of(cut) == EntryTime(None, None)
    assert survey([cut, HEAD]) == Survey(NOW, NOW, 1, 5)
    assert survey([HEAD, cut]) == Survey(NOW, NOW, 1, 5)
    two = b"\x0e\x02\x00\x00\x00\x0a\x08\x05\x0e\x02\x00\x00\x00\x01\x08\x06"
    assert survey([two, HEAD]) == brute_force([two, HEAD])
