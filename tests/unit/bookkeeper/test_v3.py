"""Version 3 on the wire: golden requests, answers, which status counts, and that nothing but reading can be said."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from offloaderd.bookkeeper.wire import v3
from offloaderd.bookkeeper.wire.protocol import AUTH_BYTES_MAX, LAST_ENTRY, V3_CODES, AuthToken, BadAnswer, Status
from offloaderd.core.errors import InvalidInput
from offloaderd.format.pb.bookkeeper import protocol_pb2 as pb
from tests.unit.bookkeeper import wire

ID = st.integers(0, 2**63 - 1)


def test_requests_have_the_bytes_that_bookies_were_seen_to_answer() -> None:
    """The vectors of live bookies: a read, and a read of the last entry."""
    assert v3.encode_read(7, 2, 3)[4:].hex() == "0a06080310011807a2060408021003"
    assert v3.encode_read(7, 2, LAST_ENTRY)[4:].hex() == "0a06080310011807a2060d080210ffffffffffffffffff01"
    assert v3.encode_read(7, 2, 3)[:4] == (15).to_bytes(4, "big")


def test_a_long_poll_requests_the_entry_with_it() -> None:
    """Previous LAC, time-out, entry -1 and the flag that brings the entry: what makes a read a long poll."""
    request = pb.Request.FromString(v3.encode_long_poll(2**64 - 1, 2, previous_lac=-1, timeout_ms=1000)[4:])
    assert request.header.txnId == 2**64 - 1
    read = request.readRequest
    assert (read.ledgerId, read.entryId, read.previousLac, read.timeoutMs, read.flag) == (2, -1, -1, 1000, 2)


def test_authentication_and_tls_are_asked_for() -> None:
    """AUTH is operation 5 with field 102; START_TLS operation 9 with the empty field 106."""
    assert v3.encode_auth(1, AuthToken("sasl", b"t"))[4:].hex() == "0a06080310051801b206090a047361736c120174"
    assert v3.encode_start_tls(1)[4:].hex() == "0a06080310091801d20600"


def fields_of(message: bytes) -> set[int]:
    """Return the numbers of the fields in an encoded ReadRequest's outer message."""
    return {field.number for field, _ in pb.Request.FromString(message[4:]).readRequest.ListFields()}


@given(st.integers(0, 2**64 - 1), ID, st.integers(-1, 2**63 - 1), st.integers(0, v3.POLL_MS_MAX))
@settings(max_examples=60)
def test_no_request_fences_or_carries_a_key(txn_id: int, ledger_id: int, entry_id: int, timeout_ms: int) -> None:
    """Field 3 (a master key) is never there, and field 100 (the flag) is 2 (piggyback) or absent, never 1 (fence)."""
    read = v3.encode_read(txn_id, ledger_id, entry_id)
    poll = v3.encode_long_poll(txn_id, ledger_id, previous_lac=entry_id, timeout_ms=timeout_ms)
    assert fields_of(read) == {1, 2}
    assert fields_of(poll) == {1, 2, 4, 5, 100}
    assert poll[4:].count(b"\xa0\x06\x02") == 1
    for request in (read, poll, v3.encode_start_tls(txn_id)):
        assert pb.Request.FromString(request[4:]).header.operation in {1, 5, 9}


def test_the_messages_have_no_words_for_writing() -> None:
    """No field for adding, writing a LAC or a key, no fencing flag, no operation of a writer: not even by mistake."""
    file = pb.DESCRIPTOR
    numbers = {field.number for field in file.message_types_by_name["Request"].fields}
    assert numbers == {1, 100, 102, 104, 106}
    read = file.message_types_by_name["ReadRequest"]
    assert {field.number for field in read.fields} == {1, 2, 4, 5, 100}
    assert {value.number for value in read.enum_types_by_name["Flag"].values} == {2}
    assert {value.number for value in file.enum_types_by_name["Operation"].values} == {1, 5, 7, 9}
    with pytest.raises(ValueError, match="1"):
        pb.ReadRequest().flag = 1  # type: ignore[assignment]
    assert read.fields_by_name["flag"].type == FieldDescriptor.TYPE_ENUM


@pytest.mark.parametrize("txn_id", [-1, 2**64])
def test_a_transaction_id_out_of_range_is_not_sent(txn_id: int) -> None:
    """Transaction ids are unsigned and have 64 bits."""
    with pytest.raises(InvalidInput):
        v3.encode_start_tls(txn_id)


@pytest.mark.parametrize(("ledger_id", "entry_id"), [(-1, 0), (2**63, 0), (0, -2), (0, 2**63)])
def test_ids_out_of_range_are_not_asked_for(ledger_id: int, entry_id: int) -> None:
    """Ids are signed 64-bit and not negative, but for the last entry."""
    with pytest.raises(InvalidInput):
        v3.encode_read(0, ledger_id, entry_id)
    with pytest.raises(InvalidInput):
        v3.encode_long_poll(0, ledger_id, previous_lac=entry_id, timeout_ms=0)


@pytest.mark.parametrize("timeout_ms", [-1, v3.POLL_MS_MAX + 1])
def test_an_endless_poll_is_not_asked_for(timeout_ms: int) -> None:
    """A long poll has an end that a deadline can wait for."""
    with pytest.raises(InvalidInput):
        v3.encode_long_poll(0, 0, previous_lac=0, timeout_ms=timeout_ms)


@pytest.mark.parametrize("token", [AuthToken("", b""), AuthToken("p", bytes(AUTH_BYTES_MAX + 1))])
def test_senseless_tokens_are_not_sent(token: AuthToken) -> None:
    """A plugin has a name, and a token some measure."""
    with pytest.raises(InvalidInput):
        v3.encode_auth(1, token)


def answered(response: pb.Response) -> v3.Answer:
    """Return what the decoder makes of a response."""
    (answer,) = v3.Decoder().feed(wire.framed(response.SerializeToString()))
    return answer


def test_a_read_is_read() -> None:
    """Entry and LAC arrive; an empty entry is not the same as none."""
    header = wire.v3_header(7, pb.READ_ENTRY)
    inner = pb.ReadResponse(status=0, ledgerId=2, entryId=3, body=b"", maxLac=9, lacUpdatedMs=5)
    assert answered(pb.Response(header=header, status=0, readResponse=inner)) == v3.ReadAnswer(
        txn_id=7, status=Status.OK, code=0, ledger_id=2, entry_id=3, entry=b"", max_lac=9
    )
    inner = pb.ReadResponse(status=0, ledgerId=2, entryId=-1)
    assert answered(pb.Response(header=header, status=0, readResponse=inner)) == v3.ReadAnswer(
        txn_id=7, status=Status.OK, code=0, ledger_id=2, entry_id=-1
    )


@pytest.mark.parametrize(("outer", "inner", "code"), [(0, 403, 403), (501, 0, 501), (402, 403, 402), (0, 999, 999)])
def test_the_first_bad_status_counts(outer: int, inner: int, code: int) -> None:
    """An error that only the inner message tells is not lost, and an entry beside an error is not handed out."""
    read = pb.ReadResponse(status=inner, ledgerId=2, entryId=3, body=b"x")
    answer = answered(pb.Response(header=wire.v3_header(7, pb.READ_ENTRY), status=outer, readResponse=read))
    assert answer == v3.ReadAnswer(
        txn_id=7, status=V3_CODES.get(code, Status.UNKNOWN), code=code, ledger_id=2, entry_id=3
    )


def test_authentication_and_tls_are_answered() -> None:
    """A token comes back; the OK to TLS counts with or without its empty message."""
    message = pb.AuthMessage(pluginName="AuthDisabledPlugin", payload=b"")
    answer = answered(pb.Response(header=wire.v3_header(1, pb.AUTH), status=0, authResponse=message))
    assert isinstance(answer, v3.AuthAnswer)
    assert answer.token.disabled
    header = wire.v3_header(2, pb.START_TLS)
    expected = v3.TlsAnswer(txn_id=2, status=Status.OK, code=0)
    assert answered(pb.Response(header=header, status=0)) == expected
    assert answered(pb.Response(header=header, status=0, startTlsResponse=pb.StartTls())) == expected
    refused = answered(pb.Response(header=header, status=404, startTlsResponse=pb.StartTls()))
    assert refused == v3.Refusal(txn_id=2, status=Status.BAD_REQUEST, code=404, operation=9)


@pytest.mark.parametrize("operation", [1, 5, 7, 9, 12, 77])
@pytest.mark.parametrize(
    ("code", "status"), [(502, Status.UNAUTHORISED), (404, Status.BAD_REQUEST), (-5, Status.UNKNOWN)]
)
def test_an_error_without_its_message_is_a_refusal(operation: int, code: int, status: Status) -> None:
    """Unauthorised requests and unknown operations are answered by a bare status, known or new."""
    answer = answered(pb.Response(header=wire.v3_header(3, operation), status=code))
    assert answer == v3.Refusal(txn_id=3, status=status, code=code, operation=operation)


@pytest.mark.parametrize(
    "response",
    [
        pb.Response(header=wire.v3_header(3, 1, version=2), status=0),
        pb.Response(header=wire.v3_header(3, 9, version=2), status=0),
        pb.Response(header=wire.v3_header(3, 1), status=0),
        pb.Response(header=wire.v3_header(3, 2), status=0),
        pb.Response(header=wire.v3_header(3, 5), status=0),
        pb.Response(
            header=wire.v3_header(3, 7), status=0, readResponse=pb.ReadResponse(status=0, ledgerId=1, entryId=1)
        ),
    ],
)
def test_what_is_no_answer_is_refused(response: pb.Response) -> None:
    """Another version, good answers without their message, answers to what was never asked."""
    with pytest.raises(BadAnswer):
        v3.decode(response.SerializeToString())


@pytest.mark.parametrize("message", [b"\x02\x02\0\0", b"", b"\x0a\x06\x08\x03\x10\x01\x18\x07", b"\xff" * 20])
def test_what_is_no_message_is_refused(message: bytes) -> None:
    """A v2 answer, nothing, a header alone and noise are not v3."""
    with pytest.raises(BadAnswer):
        v3.decode(message)
