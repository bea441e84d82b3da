"""Frames: fragmentation changes nothing, memory is bounded, the first broken frame ends it all."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloaderd.bookkeeper.wire import protocol, v2, v3
from offloaderd.bookkeeper.wire.protocol import BadAnswer
from offloaderd.core.errors import InvalidInput, OffloaderError
from tests.unit.bookkeeper import wire


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Return `data` in pieces, cut at the given places modulo its length."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[low:high] for low, high in pairwise(edges)]


def drain(decoder: protocol.Decoder[v2.Answer] | protocol.Decoder[v3.Answer], pieces: list[bytes]) -> list[object]:
    """Feed all pieces; return what came out, and at the end the message of the BadAnswer that ended it, if any."""
    seen: list[object] = []
    try:
        for piece in pieces:
            for answer in decoder.feed(piece):
                seen.append(answer)  # noqa: PERF402 - extend would lose what came before an error
    except BadAnswer as error:
        seen.append(error.message)
    return seen


MESSAGES = st.lists(st.binary(min_size=4, max_size=60), max_size=6)
PLACES = st.lists(st.integers(0, 10_000), max_size=12)


@given(MESSAGES, PLACES)
@settings(max_examples=60)
def test_any_fragmentation_gives_the_same_frames(messages: list[bytes], places: list[int]) -> None:
    """Wherever the stream is cut, the messages come out whole and in order, and nothing stays behind."""
    decoder = protocol.Decoder(bytes)
    stream = b"".join(map(protocol.frame, messages))
    assert [message for piece in cut(stream, places) for message in decoder.feed(piece)] == messages
    assert decoder.buffered_bytes == 0


@pytest.mark.parametrize("protocol", [v2, v3])
@given(st.data())
@settings(max_examples=80)
def test_arbitrary_bytes_give_the_same_answers_or_the_same_error(protocol: object, data: st.DataObject) -> None:
    """Hostile streams end in BadAnswer or wait for more, and fragmentation does not change which."""
    heads = [
        b"\x02\x02\0\0",
        b"\x02\x07\0\0\0\0\0\0",
        b"\x02\x03\0\0",
        b"\x0a\x06\x08\x03\x10\x01\x18\x07",
    ]
    message = st.one_of(
        st.binary(max_size=80), st.builds(bytes.__add__, st.sampled_from(heads), st.binary(max_size=60))
    )
    stream = b"".join(data.draw(st.lists(message.map(wire.framed), max_size=4))) + data.draw(st.binary(max_size=8))
    kind = v2.Decoder if protocol is v2 else v3.Decoder
    whole = drain(kind(frame_bytes_max=100), [stream])
    assert drain(kind(frame_bytes_max=100), cut(stream, data.draw(PLACES))) == whole


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 3, 101, 2**31 - 1])
def test_a_length_out_of_range_is_refused_before_its_bytes_come(length: int) -> None:
    """The announcement alone is enough, and what was buffered is let go."""
    decoder = protocol.Decoder(bytes, frame_bytes_max=100)
    with pytest.raises(BadAnswer, match=f"answer of {length} bytes was announced"):
        next(decoder.feed(length.to_bytes(4, "big", signed=True) + bytes(50)))
    assert decoder.buffered_bytes == 0


def test_limits_are_inclusive() -> None:
    """A frame of exactly the cap and one of the least size pass."""
    decoder = protocol.Decoder(bytes, frame_bytes_max=100)
    assert list(decoder.feed(protocol.frame(bytes(100)) + protocol.frame(bytes(4)))) == [bytes(100), bytes(4)]


def test_a_broken_connection_stays_broken() -> None:
    """Good answers before the broken frame are handed out; after it nothing is, and nothing is kept."""
    decoder = v2.Decoder()
    good = wire.v2_read(1, 2, bytes(40))
    answers = decoder.feed(good + wire.framed(b"\x09\x02\0\0") + good)
    assert next(answers).key == (1, 2)
    for _ in range(2):
        with pytest.raises(BadAnswer, match="protocol version 9"):
            next(answers)
    with pytest.raises(BadAnswer, match="protocol version 9"):
        next(decoder.feed(good))
    assert decoder.buffered_bytes == 0


def test_answers_left_behind_stay() -> None:
    """What a caller does not take is there the next time, and a fragment is seen."""
    decoder = protocol.Decoder(bytes)
    next(decoder.feed(protocol.frame(b"aaaa") + protocol.frame(b"bbbb") + b"\0\0"))
    assert decoder.buffered_bytes == 10
    assert list(decoder.feed(b"\0\x04cccc")) == [b"bbbb", b"cccc"]


def test_memory_is_bounded_by_the_cap() -> None:
    """A frame that never ends costs what was fed, below the cap, in whatever pieces it trickles in."""
    decoder = protocol.Decoder(bytes, frame_bytes_max=1000)
    assert not list(decoder.feed((1000).to_bytes(4, "big")))
    for _ in range(999):
        assert not list(decoder.feed(b"x"))
    assert decoder.buffered_bytes == 1003
    assert list(decoder.feed(b"x")) == [b"x" * 1000]
    assert decoder.buffered_bytes == 0


@pytest.mark.parametrize("cap", [3, 2**31])
def test_a_cap_that_cannot_work_is_refused(cap: int) -> None:
    """The cap has to let a header through and fit the length field."""
    with pytest.raises(InvalidInput):
        protocol.Decoder(bytes, frame_bytes_max=cap)


def test_bad_answers_are_of_our_tree() -> None:
    """Whoever knows only the tree knows that trying again may help."""
    assert issubclass(BadAnswer, OffloaderError)
