"""Version 2 on the wire: the layouts, the statuses, what is refused, and that nothing but reading can be said."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloaderd.bookkeeper.wire import v2
from offloaderd.bookkeeper.wire.protocol import AUTH_BYTES_MAX, LAST_ENTRY, AuthToken, BadAnswer, Status
from offloaderd.core.errors import InvalidInput
from tests.loops import both_loops
from tests.unit.bookkeeper import wire

pytestmark = pytest.mark.usefixtures(both_loops.__name__)

ID = st.integers(0, 2**63 - 1)
ENTRIES = st.lists(st.binary(min_size=32, max_size=50), min_size=1, max_size=5)


def test_requests_have_the_bytes_of_the_protocol() -> None:
    """A read takes 20 bytes, a batch read 40, byte for byte, each after its length."""
    assert v2.encode_read(2, 3).hex() == "000000140202000000000000000000020000000000000003"
    assert v2.encode_read(2, LAST_ENTRY).hex() == "00000014020200000000000000000002ffffffffffffffff"
    batch = v2.encode_batch_read(5, 2**31, 3, count_max=9, bytes_max=2**20)
    assert batch.hex() == ("0000002802070000000000008000000000000000000000030000000000000005000000090000000000100000")
    assert (
        v2.encode_auth(AuthToken("sasl", b"")).hex() == "0000000c020300000a0473617369".replace("7369", "736c") + "1200"
    )


@given(ID, st.integers(-1, 2**63 - 1), ID, st.integers(1, 2**40), st.binary(max_size=20))
@settings(max_examples=60)
def test_no_request_carries_a_flag_or_a_key(
    ledger_id: int, entry_id: int, request_id: int, count: int, token: bytes
) -> None:
    """Whatever is asked, flags are zero, the operation is a read or authentication, and no key follows."""
    requests = [
        (v2.encode_read(ledger_id, entry_id), 2, 20),
        (v2.encode_batch_read(request_id, ledger_id, max(entry_id, 0), count_max=count), 7, 40),
        (v2.encode_auth(AuthToken("p", token)), 3, 4 + 5 + len(token)),
    ]
    for request, operation, length in requests:
        assert struct.unpack_from(">iBBH", request) == (length, 2, operation, 0)
        assert len(request) == 4 + length


def test_the_operations_of_writers_are_not_there() -> None:
    """The module knows the numbers of the three operations of a reader and no more."""
    assert {v2.READ_ENTRY, v2.AUTH, v2.BATCH_READ} == {2, 3, 7}
    encoders = {name for name in vars(v2) if name.startswith("encode_") and name != "encode_auth_message"}
    assert encoders == {"encode_read", "encode_batch_read", "encode_auth"}


@pytest.mark.parametrize(
    ("ledger_id", "entry_id"), [(-1, 0), (2**63, 0), (0, -2), (0, 2**63)], ids=["low", "high", "entry", "entry-high"]
)
def test_ids_out_of_range_are_not_asked_for(ledger_id: int, entry_id: int) -> None:
    """Ids are signed 64-bit and not negative, but for the last entry."""
    with pytest.raises(InvalidInput):
        v2.encode_read(ledger_id, entry_id)
    with pytest.raises(InvalidInput):
        v2.encode_batch_read(0, ledger_id, entry_id, count_max=1)


@pytest.mark.parametrize(("first", "count", "size"), [(-1, 1, 1), (0, 0, 1), (0, -1, 1), (0, 1, -1), (0, 1, 2**63)])
def test_a_batch_without_a_bound_is_not_asked_for(first: int, count: int, size: int) -> None:
    """A count of zero would mean no limit, and hand out what is not confirmed."""
    with pytest.raises(InvalidInput):
        v2.encode_batch_read(0, 0, first, count_max=count, bytes_max=size)


def test_a_request_id_out_of_range_is_not_sent() -> None:
    """A request id is a signed number that is not negative."""
    with pytest.raises(InvalidInput):
        v2.encode_batch_read(-1, 0, 0, count_max=1)


@pytest.mark.parametrize("token", [AuthToken("", b""), AuthToken("p", bytes(AUTH_BYTES_MAX + 1))])
def test_senseless_tokens_are_not_sent(token: AuthToken) -> None:
    """A plugin has a name, and a token some measure."""
    with pytest.raises(InvalidInput):
        v2.encode_auth(token)


def test_tokens_stay_out_of_logs() -> None:
    """The payload of a token is not in its repr."""
    assert "secret" not in repr(AuthToken("sasl", b"secret"))


@given(ID, ID, st.binary(max_size=60))
@settings(max_examples=40)
def test_a_read_is_read(ledger_id: int, entry_id: int, entry: bytes) -> None:
    """An answer to a read has the request's ids as its key, and the entry."""
    (answer,) = v2.Decoder().feed(wire.v2_read(ledger_id, entry_id, entry))
    assert answer == v2.ReadAnswer(Status.OK, 0, ledger_id, entry_id, entry)
    assert answer.key == v2.read_key(ledger_id, entry_id)


@given(ID, ID, ID, ENTRIES)
@settings(max_examples=40)
def test_a_batch_is_read(request_id: int, ledger_id: int, first: int, entries: list[bytes]) -> None:
    """An answer to a batch has the request's id as its key, and the entries in order."""
    (answer,) = v2.Decoder().feed(wire.v2_batch(request_id, ledger_id, first, entries))
    assert answer == v2.BatchAnswer(Status.OK, 0, ledger_id, first, request_id, entries)
    assert answer.key == request_id


@pytest.mark.parametrize(
    ("code", "status"),
    [(1, Status.NO_LEDGER), (2, Status.NO_ENTRY), (106, Status.TOO_MANY_REQUESTS), (9, Status.UNKNOWN)],
)
def test_an_error_has_no_entries(code: int, status: Status) -> None:
    """An error arrives with its ids and code; bytes after it are nobody's entry."""
    read, batch = v2.Decoder().feed(
        wire.v2_read(4, 5, b"junk", code=code) + wire.v2_batch(7, 4, 5, [b"junk"], code=code)
    )
    assert read == v2.ReadAnswer(status, code, 4, 5, b"")
    assert batch == v2.BatchAnswer(status, code, 4, 5, 7, [])


def test_authentication_that_is_off_is_told() -> None:
    """A bookie without authentication answers with a name of its own."""
    message = b"\x02\x03\0\0" + b"\x0a\x12AuthDisabledPlugin" + b"\x12\x00"
    (answer,) = v2.Decoder().feed(wire.framed(message))
    assert isinstance(answer, v2.AuthAnswer)
    assert answer.key is None
    assert answer.token.disabled
    assert not AuthToken("sasl", b"").disabled


HEAD = struct.pack(">BBHiqqq", 2, 7, 0, 0, 1, 2, 3)


@pytest.mark.parametrize(
    "message",
    [
        b"\x03\x02\0\0" + bytes(20),
        b"\x02\x01\0\0" + bytes(20),
        b"\x02\x04\0\0" + bytes(20),
        b"\x02\x02\0\0" + bytes(19),
        HEAD[:-1],
        HEAD,
        HEAD + b"\0\0\0",
        HEAD + wire.framed(bytes(31)),
        HEAD + wire.framed(bytes(32)) + b"\0",
        HEAD + (33).to_bytes(4, "big") + bytes(32),
        HEAD + b"\xff\xff\xff\xff" + bytes(32),
        HEAD + b"\x7f\xff\xff\xff" + bytes(32),
        b"\x02\x03\0\0",
        b"\x02\x03\0\0\x0a\x01\xff\x12\x00",
    ],
)
def test_what_is_no_answer_is_refused(message: bytes) -> None:
    """Wrong versions, operations of writers, short and overlong answers, batches that do not add up."""
    with pytest.raises(BadAnswer):
        v2.decode(message)


def test_a_message_below_a_header_is_refused() -> None:
    """Called on its own, `decode` does not trust that the framing has looked."""
    with pytest.raises(BadAnswer):
        v2.decode(b"\x02\x02\0")
