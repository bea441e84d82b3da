"""Transactions of a row of entries: what a broker's transaction buffer would say of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.model import Position
from offloaderd.format.pulsar import broker_entry, transactions
from offloaderd.format.pulsar.transactions import Mention, TransactionId, TransactionLog, TransactionState, mention_of
from tests.unit.format.test_pulsar_message import entry, sized
from tests.unit.transactional import abort, commit, sent

ONE, TWO = TransactionId(1, 7), TransactionId(1, 8)


def log_of(*payloads: bytes) -> TransactionLog:
    """Return the log of a ledger's entries."""
    log = TransactionLog()
    for entry_id, payload in enumerate(payloads):
        if (mention := mention_of(payload)) is not None:
            log.take(Position(1, entry_id), mention)
    return log


@pytest.mark.parametrize("head", [b"", broker_entry.encode_head(broker_timestamp=99, index=12)])
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("size", [1, 100_000])
def test_what_entries_say(head: bytes, size: int, *, checksum: bool) -> None:
    """Messages, both markers, and markers of other types, as brokers and clients write them."""
    ids: dict[str, Any] = {"txnid_most_bits": 1, "txnid_least_bits": 7, "head": head, "checksum": checksum}
    content = bytes(size)
    assert mention_of(entry(content, **ids)) == Mention(ONE)
    assert mention_of(entry(content, **ids, marker_type=21)) == Mention(ONE, TransactionState.COMMITTED)
    assert mention_of(entry(content, **ids, marker_type=22)) == Mention(ONE, TransactionState.ABORTED)
    assert mention_of(entry(content, **ids, marker_type=20)) == Mention(ONE)
    assert mention_of(entry(content, head=head, checksum=checksum, marker_type=12)) is None
    assert mention_of(entry(content, head=head, checksum=checksum)) is None
    assert mention_of(entry(b"\xb0\x01" * 9, head=head, checksum=checksum)) is None


@pytest.mark.parametrize("tag", [b"\xb0\x01", b"\xb0\x81\x00", b"\xb0\x81\x80\x00", b"\xb0\x81\x80\x80\x00"])
@pytest.mark.parametrize("most", [b"\xb8\x01", b"\xb8\x81\x00"])
def test_a_transaction_is_seen_however_its_fields_are_written(most: bytes, tag: bytes) -> None:
    """A broker reads tags that are longer than need be, so nobody hides an aborted message behind one."""
    plain = entry(b"").removeprefix(b"\x0e\x01")[8:]
    assert mention_of(sized(plain + most + b"\x01" + tag + b"\x07")) == Mention(ONE)
    assert mention_of(sized(plain + most + b"\x01" + tag + b"\x07" + b"\xa0\x81\x00\x16")) == Mention(
        ONE, TransactionState.ABORTED
    )


@given(payload=st.binary(max_size=200), tag=st.booleans())
def test_any_bytes_are_in_a_transaction_or_not(payload: bytes, *, tag: bool) -> None:
    """Nothing that a producer stores makes it fail."""
    bytes_of = payload + b"\xb0\x01" if tag else payload
    for data in (bytes_of, b"\x0e\x01" + bytes_of, sized(bytes_of)):
        mention_of(data)


def test_outcomes_follow_from_the_markers() -> None:
    """Several transactions at once, over two ledgers: the first one without a marker is where consumers wait."""
    log = log_of(sent(ONE), sent(TWO), sent(ONE), commit(ONE))
    assert log.first_open() == (TWO, Position(1, 1))
    assert log.state(Position(1, 0), ONE) is TransactionState.COMMITTED
    assert log.state(Position(1, 1), TWO) is TransactionState.OPEN
    log.take(Position(2, 0), Mention(TWO, TransactionState.ABORTED))
    assert log.first_open() is None
    assert log.state(Position(1, 1), TWO) is TransactionState.ABORTED


def test_a_message_that_comes_too_late_is_aborted_as_well() -> None:
    """It opens nothing: no marker will follow, and consumers are not kept waiting."""
    log = log_of(sent(ONE), abort(ONE), sent(ONE))
    assert log.first_open() is None
    assert log.state(Position(1, 2), ONE) is TransactionState.ABORTED


def test_markers_without_messages_change_nothing() -> None:
    """Transactions that only acknowledge have markers on no topic of theirs, but a marker alone is no harm."""
    log = log_of(commit(ONE), abort(TWO), entry(b"plain"))
    assert log.first_open() is None


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aborts are forgotten once all before their markers was told, but for the newest, which messages may follow."""
    monkeypatch.setattr(transactions, "ENDED_MAX", 2)
    ids = [TransactionId(1, number) for number in range(5)]
    log = log_of(*(abort(one) for one in ids))
    log.forget(Position(1, 1))
    assert len(log) == 4
    log.forget(Position(9, 0))
    assert len(log) == 2
    assert log.state(Position(1, 0), ids[4]) is TransactionState.ABORTED
