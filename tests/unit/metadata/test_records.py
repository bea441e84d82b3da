"""Round trips of the record kinds, and what happens to bytes that are none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import Position
from offloaderd.core.read_options import ReadPriority
from offloaderd.format.pb.storage import manifest_pb2, records_pb2
from offloaderd.metadata.records import attempt, context, deletion, grant, ownership
from offloaderd.policy.records import (
    Selection,
    TopicPolicy,
    decode_policy,
    decode_selection,
    disabled,
    encode_policy,
    encode_selection,
)
from tests.unit.metadata.strategies import NAME, TEXT, UINT64, attempts, floors, grants, policies, selections

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

PATH = "/topics/t/n/persistent/x/node"
DECODERS = [
    attempt.decode,
    context.decode,
    ownership.decode_daemon,
    ownership.decode_epoch,
    deletion.decode_floor,
    grant.decode,
    ownership.decode_owner,
    decode_policy,
    decode_selection,
    deletion.decode_trash,
]
SOME_POLICY = records_pb2.TopicPolicyRecord(enabled=True)
SEGMENT = UUID("11223344-5566-7788-99aa-bbccddeeff00")


def _part(first: int, last: int) -> records_pb2.GrantedSegment:
    return records_pb2.GrantedSegment(segment_id=str(SEGMENT), first_entry_id=first, last_entry_id=last)


@given(attempts)
def test_an_attempt_reads_back(value: attempt.Attempt) -> None:
    """Every field of an attempt survives, and equal attempts give equal bytes."""
    data = attempt.encode(value)
    assert attempt.decode(data, path=PATH) == value
    assert attempt.encode(attempt.decode(data, path=PATH)) == data


@given(st.builds(ownership.Owner, daemon_id=NAME, address=TEXT, session_id=TEXT, epoch=UINT64))
def test_an_owner_reads_back(value: ownership.Owner) -> None:
    """Every field of an owner survives."""
    assert ownership.decode_owner(ownership.encode_owner(value), path=PATH) == value


@given(
    st.builds(
        ownership.DaemonNode,
        daemon_id=NAME,
        address=TEXT,
        version=TEXT,
        started_ms=UINT64,
        draining=st.booleans(),
        impaired=TEXT,
        session_id=TEXT,
        process=TEXT,
    )
)
def test_a_daemon_reads_back(value: ownership.DaemonNode) -> None:
    """Every field of a daemon's registration survives."""
    assert ownership.decode_daemon(ownership.encode_daemon(value), path=PATH) == value


@given(st.builds(ownership.Epoch, epoch=st.integers(1, 2**64 - 1), daemon_id=TEXT, claimed_ms=UINT64))
def test_an_epoch_reads_back(value: ownership.Epoch) -> None:
    """Every field of an epoch survives."""
    assert ownership.decode_epoch(ownership.encode_epoch(value), path=PATH) == value


@given(policies)
def test_a_policy_reads_back(value: TopicPolicy) -> None:
    """What is set survives with its value (0 included); what is inherited stays unset."""
    assert decode_policy(encode_policy(value), path=PATH) == value


@given(selections)
def test_a_selection_reads_back(value: Selection) -> None:
    """Pattern, policy and age survive; the pattern still matches what it matched."""
    found = decode_selection(encode_selection(value), path=PATH)
    assert found == value
    assert found.pattern.scope == value.pattern.scope


@given(
    st.builds(
        deletion.Trash,
        segment_id=st.uuids(),
        upload_id=TEXT,
        reason=TEXT,
        decided_ms=UINT64,
        bucket=st.none() | TEXT,
        prefix=st.none() | TEXT,
    )
)
def test_trash_reads_back(value: deletion.Trash) -> None:
    """Every field of a trash record survives."""
    assert deletion.decode_trash(deletion.encode_trash(value), path=PATH) == value


@given(floors)
def test_a_floor_reads_back(value: deletion.Floor) -> None:
    """Where it stands, how its ledger ended and what was deleted survive."""
    assert deletion.decode_floor(deletion.encode_floor(value), path=PATH) == value


@given(grants())
def test_a_grant_reads_back(value: grant.Grant) -> None:
    """What was verified, by whom and when, and that it was revoked survive."""
    assert grant.decode(grant.encode(value), path=PATH) == value


def test_a_grant_is_in_force_while_verified_and_not_revoked() -> None:
    """Nothing but a verified, unrevoked grant allows a deletion, and not before its time."""
    granted = grant.Grant(ledger_id=1, verified_ms=5, not_before_ms=10)
    assert not granted.allows(9)
    assert granted.allows(10)
    assert not replace(granted, revoked_ms=7).allows(10)
    assert not grant.Grant(ledger_id=1, not_before_ms=10).allows(10)


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: f"{decode.__module__}.{decode.__name__}")
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_are_a_record_or_corrupt(decode: Callable[..., object], data: bytes) -> None:
    """Whatever lies in a node, decoding returns a value or raises CorruptData with the node's path."""
    try:
        found = decode(data, path=PATH)
    except CorruptData as error:
        found = error.key
    assert found is not None
    assert found == PATH or not isinstance(found, str)


def test_a_disabled_policy_keeps_its_settings() -> None:
    """Switching a topic off and on again loses no setting."""
    value = TopicPolicy(segment_bytes_max=5, read_priority=ReadPriority.BOOKKEEPER_FIRST)
    off = disabled(value)
    assert not off.enabled
    assert off.segment_bytes_max == 5
    assert off.read_priority is ReadPriority.BOOKKEEPER_FIRST


def _attempt(changes: dict[str, Any]) -> bytes:
    fields: dict[str, Any] = {"segment_id": str(SEGMENT), "begin_ledger_id": 1, "begin_entry_id": 2, "status": 1}
    return records_pb2.AttemptRecord(**{**fields, **changes}).SerializeToString()


@pytest.mark.parametrize(
    "changes",
    [
        {"segment_id": ""},
        {"segment_id": str(SEGMENT).upper()},
        {"segment_id": "{" + str(SEGMENT) + "}"},
        {"status": 0},
        {"status": 9},
        {"begin_ledger_id": -1},
        {"begin_entry_id": -1},
        {"parts": [records_pb2.AttemptPart(etag="e", size_bytes=5)]},
        {"parts": [records_pb2.AttemptPart(blocks=[manifest_pb2.SegmentBlock(sparse_entry=[1])])]},
        {"seal": records_pb2.AttemptSeal(sealed_ms=5)},
    ],
    ids=str,
)
def test_an_impossible_attempt_is_corrupt(changes: dict[str, Any]) -> None:
    """A missing, odd or unknown value in an attempt is told, never guessed."""
    assert attempt.decode(_attempt({}), path=PATH).begin == Position(1, 2)
    with pytest.raises(CorruptData, match=PATH):
        attempt.decode(_attempt(changes), path=PATH)


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (ownership.decode_epoch, records_pb2.EpochRecord(daemon_id="d")),
        (ownership.decode_owner, records_pb2.OwnerRecord(epoch=1)),
        (ownership.decode_daemon, records_pb2.DaemonRecord(address="a:1")),
        (deletion.decode_trash, records_pb2.TrashRecord(reason="r")),
        (decode_policy, records_pb2.TopicPolicyRecord(read_priority="newest-first")),
        (decode_policy, records_pb2.TopicPolicyRecord(segment_age_max_s=float("nan"))),
        (decode_policy, records_pb2.TopicPolicyRecord(segment_age_min_s=-1.0)),
        (decode_policy, records_pb2.TopicPolicyRecord(retention="never")),
        (decode_policy, records_pb2.TopicPolicyRecord(retention_age_s=-1.0)),
        (deletion.decode_floor, records_pb2.FloorRecord(ledger_id=-1)),
        (deletion.decode_floor, records_pb2.FloorRecord(ledger_id=4, entry_id=9, ledger_entries=9)),
        (deletion.decode_floor, records_pb2.FloorRecord(ledger_id=4, entry_id=9, ledger_entries=10, next_ledger_id=4)),
        (deletion.decode_floor, records_pb2.FloorRecord(ledger_id=4, entry_id=9, next_ledger_id=5)),
        (grant.decode, records_pb2.GrantRecord(ledger_id=4, entries=9, verified_ms=1)),
        (
            grant.decode,
            records_pb2.GrantRecord(ledger_id=4, entries=9, verified_ms=1, segments=[_part(0, 3), _part(5, 8)]),
        ),
        (grant.decode, records_pb2.GrantRecord(ledger_id=4, entries=9, verified_ms=1, segments=[_part(0, 9)])),
        (decode_selection, records_pb2.SelectionRecord(pattern="public/default/orders", policy=SOME_POLICY)),
        (decode_selection, records_pb2.SelectionRecord(pattern="persistent://a/*", policy=SOME_POLICY)),
        (decode_selection, records_pb2.SelectionRecord(pattern="a/*")),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_impossible_values_are_corrupt(decode: Callable[..., object], data: Message) -> None:
    """Each kind refuses what it could not have written."""
    with pytest.raises(CorruptData):
        decode(data.SerializeToString(), path=PATH)
