"""One record of each kind with everything in it, as values; records.txt holds the bytes that the release made of them.

`python -m tests.golden.records` prints such a file. Values are added to, and lines of the file never edited: what a
release has written lies in somebody's ZooKeeper.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from offloaderd.core.model import (
    HistoryOrder,
    LedgerEnd,
    Loss,
    MirrorRequired,
    OffloadMethod,
    OutagePolicy,
    Position,
    SegmentRange,
    TierRetention,
)
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.core.read_options import ReadPriority
from offloaderd.format.manifest import BlockInfo, LedgerPart, Past
from offloaderd.format.v1 import LedgerLayout
from offloaderd.format.v2 import SegmentLayout
from offloaderd.metadata.records import (
    attempt,
    context,
    copy,
    deletion,
    grant,
    history,
    identity,
    loss,
    orders,
    ownership,
    verified,
)
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.policy.records import (
    LevelPolicy,
    Selection,
    TopicPolicy,
    decode_level,
    decode_policy,
    decode_selection,
    encode_level,
    encode_policy,
    encode_selection,
)

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = Path(__file__).with_name("records.txt")
SEGMENT = UUID("11223344-5566-7788-99aa-bbccddeeff00")
OTHER = UUID("00ffeedd-ccbb-aa99-8877-665544332211")
SAID: dict[str, Any] = {
    "segment_bytes_max": 1 << 30,
    "segment_age_max_s": 600.0,
    "segment_age_min_s": 1.5,
    "method": OffloadMethod.LEDGER_BASED,
    "threshold_bytes": -1,
    "threshold_s": 3600.0,
    "deletion_lag_s": 14_400.0,
    "read_priority": ReadPriority.BOOKKEEPER_FIRST,
    "bucket": "archive",
    "prefix": "topics/",
    "history_order": HistoryOrder.ALONGSIDE,
    "outage": OutagePolicy.SPILL,
    "retention": TierRetention.LIMITED,
    "retention_age_s": 86_400.0,
    "retention_bytes": 1 << 40,
}
BLOCK = BlockInfo(
    ledger_id=7,
    first_entry_id=3,
    entry_count=5,
    offset=0,
    length=700,
    crc32c=0x0102_0304,
    sparse=((0, 128), (3, 400)),
    first_broker_timestamp=1_700_000_000_000,
    last_broker_timestamp=1_700_000_000_009,
    first_index=300,
    last_index=304,
    first_publish_time=1_699_999_999_999,
)
SEAL = attempt.Seal(
    sealed_ms=1_700_000_000_123,
    epoch=4,
    software_version="0.1.0",
    data_bytes=700,
    part_count=1,
    ledgers=(
        LedgerPart(
            ledger_id=7,
            first_entry_id=3,
            last_entry_id=7,
            payload_bytes=500,
            closed=True,
            ledger_entries=8,
            ledger_bytes=800,
            closed_ms=1_700_000_000_100,
        ),
    ),
    losses=(Loss(Position(5, 1), Position(7, 3), 2, 1_700_000_000_000),),
    ends=((7, LedgerEnd(8, 9)),),
    past=Past(300, Position(7, 2), 1_699_999_999_000, 299),
)
ATTEMPT: dict[str, Any] = {
    "segment_id": SEGMENT,
    "begin": Position(7, 3),
    "assigned_ms": 1_700_000_000_000,
    "epoch": 4,
    "status": attempt.AttemptStatus.ASSIGNED,
    "upload_id": "upload-1",
    "driver": "offloaderd",
    "driver_properties": {"bucket": "offload", "prefix": "seg/"},
    "tries": 2,
    "last_error": "the part was lost",
}
SLICE = context.LedgerSegment(
    segment_id=SEGMENT,
    begin_entry_id=3,
    end_entry_id=7,
    assigned_ms=1_700_000_000_000,
    offloaded_ms=1_700_000_000_500,
    object_bytes=700,
    payload_bytes=500,
    properties={"bucket": "offload", "prefix": "seg/"},
)
PLAN = history.HistoryPlan(
    boundary=9,
    first=2,
    last=Position(7, 99),
    order=HistoryOrder.HISTORY_FIRST,
    worker=history.Worker.JOB,
    planned_ms=1_700_000_000_000,
    epoch=4,
    daemon_id="d-1",
    entries=1000,
    payload_bytes=1 << 33,
    segment_bytes=1 << 30,
    ranges=1,
    probes=17,
    split_ms=1_700_000_000_100,
    doubtful_ledgers=1,
    done_ms=0,
    holder="driver-1",
    holder_until_ms=1_700_000_060_000,
)
RANGE = history.HistoryRange(
    begin=Position(2, 0),
    end=Position(7, 99),
    entries=1000,
    payload_bytes=1 << 33,
    state=history.RangeState.CLAIMED,
    holder="executor-1",
    epoch=4,
    lease_until_ms=1_700_000_060_000,
    segment_id=SEGMENT,
    tries=1,
    last_error="lost",
)
GRANT = grant.Grant(
    ledger_id=7,
    entries=8,
    segments=(
        grant.GrantedSegment(
            segment_id=SEGMENT,
            first_entry_id=0,
            last_entry_id=7,
            objects=(grant.GrantedObject(key="seg/x", size_bytes=700, crc32c=5, etag="e"),),
        ),
    ),
    readback=True,
    verified_ms=1_700_000_000_600,
    daemon_id="d-1",
    epoch=4,
    not_before_ms=1_700_014_400_000,
    revoked_ms=1_700_000_000_700,
    revoked_reason="damaged",
    source_deleted_ms=1_700_000_000_800,
)

ACCEPTED = identity.Acceptance(kind="other-source", evidence="i-0", by="cert:alice", at_ms=1_700_000_000_500)
VALUES: dict[str, tuple[Callable[[Any], bytes], Callable[..., Any], Any]] = {
    "asked": (
        orders.encode_asked,
        orders.decode_asked,
        orders.Asked(
            wanted="all of it",
            target=Position(7, 7),
            stood=Position(7, 2),
            asked_ms=1_700_000_000_000,
            asked_by="ipv4:127.0.0.1:1",
            reason="what is left is in the open ledger",
        ),
    ),
    "attempt": (
        attempt.encode,
        attempt.decode,
        attempt.Attempt(
            **ATTEMPT,
            layout=SegmentLayout(block_bytes=1 << 20, part_bytes=8 << 20, preamble=True),
            parts=(attempt.stored_part("etag-1", 700, (BLOCK,)),),
            seal=SEAL,
        ),
    ),
    "attempt-with-creation-times": (
        attempt.encode,
        attempt.decode,
        attempt.Attempt(
            **ATTEMPT,
            layout=SegmentLayout(block_bytes=1 << 20, part_bytes=8 << 20, preamble=True),
            created={7: 1_700_000_000_000, 8: 1_700_000_000_001},
        ),
    ),
    "attempt-stored-as": (
        attempt.encode,
        attempt.decode,
        attempt.Attempt(
            **ATTEMPT,
            layout=SegmentLayout(block_bytes=1 << 20, part_bytes=8 << 20, preamble=True),
            storage_class="STANDARD_IA",
            tags={"tenant": "acme"},
        ),
    ),
    "attempt-of-a-ledger": (
        attempt.encode,
        attempt.decode,
        attempt.Attempt(
            **{**ATTEMPT, "begin": Position(7, 0)},
            layout=LedgerLayout(
                block_bytes=64 << 20,
                part_bytes=8 << 20,
                run_bytes=1 << 20,
                dense_index=True,
                entries=8,
                payload_bytes=500,
                metadata=b"BookKeeper's",
            ),
        ),
    ),
    "context": (
        context.encode,
        context.decode,
        context.LedgerContext(
            segments=(SLICE,), end=LedgerEnd(8, 9), deleted_ms=1_700_000_001_000, source_deleted=True
        ),
    ),
    "context-in-pieces": (
        context.encode,
        context.decode,
        context.LedgerContext(
            segments=(replace(SLICE, begin_entry_id=8, end_entry_id=15),),
            pieces=(context.Piece(number=1, begin_entry_id=0, end_entry_id=7),),
            created_ms=1_700_000_000_000,
        ),
    ),
    "daemon": (
        ownership.encode_daemon,
        ownership.decode_daemon,
        ownership.DaemonNode(
            daemon_id="d-1",
            address="d-1:7650",
            version="0.1.0",
            started_ms=1_700_000_000_000,
            draining=True,
            impaired="the bucket",
            session_id="0x1",
            process="boot/namespace/1/2",
        ),
    ),
    "epoch": (
        ownership.encode_epoch,
        ownership.decode_epoch,
        ownership.Epoch(epoch=4, daemon_id="d-1", claimed_ms=1_700_000_000_000),
    ),
    "epoch-of-compacted": (
        ownership.encode_epoch,
        ownership.decode_epoch,
        ownership.Epoch(epoch=4, daemon_id="d-1", claimed_ms=1_700_000_000_000, format=1),
    ),
    "floor": (
        deletion.encode_floor,
        deletion.decode_floor,
        deletion.Floor(
            position=Position(7, 7),
            end=LedgerEnd(8, 9),
            deleted_ms=1_700_000_000_000,
            segments=3,
            object_bytes=2100,
            reason="age",
        ),
    ),
    "grant": (grant.encode, grant.decode, GRANT),
    "grant-with-places": (
        grant.encode,
        grant.decode,
        replace(GRANT, places_sha256=grant.of_places([("offload", "seg/")])),
    ),
    "history-plan": (history.encode, history.decode, PLAN),
    "history-ranges": (history.encode_ranges, history.decode_ranges, (RANGE,)),
    "identity-of-a-deployment": (
        identity.encode_deployment,
        identity.decode_deployment,
        identity.Deployment(
            deployment_id=OTHER,
            made_ms=1_700_000_000_000,
            made_by="d-1",
            source=identity.SourceIdentity(kind="bookkeeper", instance_id="i-1", cluster="pulsar"),
            accepted=(ACCEPTED,),
        ),
    ),
    "identity-of-a-topic": (
        identity.encode,
        identity.decode,
        identity.TopicIdentityRecord(
            refusals=(
                identity.Refusal(
                    kind="ledger-shorter",
                    found="ledger 7 has 3 entries",
                    evidence="7:3",
                    since_ms=1_700_000_000_000,
                    epoch=4,
                ),
            ),
            accepted=(ACCEPTED,),
        ),
    ),
    "level-policy": (
        encode_level,
        decode_level,
        LevelPolicy(OffloadPolicies(**SAID), 1_700_000_000_000),
    ),
    "loss": (loss.encode, loss.decode, Loss(Position(5, 1), Position(7, 3), 2, 1_700_000_000_000)),
    "owner": (
        ownership.encode_owner,
        ownership.decode_owner,
        ownership.Owner(daemon_id="d-1", address="d-1:7650", session_id="0x1", epoch=4),
    ),
    "policy": (
        encode_policy,
        decode_policy,
        TopicPolicy(enabled=True, selected_by="public/*", partitioned=True, **SAID),
    ),
    "policy-stored-as": (
        encode_policy,
        decode_policy,
        TopicPolicy(enabled=True, storage_class="STANDARD_IA", tags="tenant={tenant}, team=data"),
    ),
    "policy-mirror": (
        encode_policy,
        decode_policy,
        TopicPolicy(enabled=True, mirror="eu/topics/"),
    ),
    "policy-mirror-required": (
        encode_policy,
        decode_policy,
        TopicPolicy(enabled=True, mirror="eu/topics/", mirror_required=MirrorRequired.YES),
    ),
    "rollback-order": (
        orders.encode_rollback,
        orders.decode_rollback,
        orders.RollbackOrder(
            to_ledger_id=9, ordered_ms=1_700_000_000_000, ended_ms=1, stopped=True, failures={7: "not closed"}
        ),
    ),
    "selection": (
        encode_selection,
        decode_selection,
        Selection(
            pattern=TopicPattern.parse("public/*"),
            policy=TopicPolicy(enabled=True, **SAID),
            created_ms=1_700_000_000_000,
        ),
    ),
    "trash": (
        deletion.encode_trash,
        deletion.decode_trash,
        deletion.Trash(
            segment_id=SEGMENT,
            upload_id="upload-1",
            reason="failed",
            decided_ms=1_700_000_000_000,
            bucket="offload",
            prefix="seg/",
            ledger_id=7,
        ),
    ),
    "trash-of-the-map": (
        deletion.encode_trash,
        deletion.decode_trash,
        deletion.Trash(
            segment_id=SEGMENT,
            upload_id="",
            reason="merged",
            decided_ms=1_700_000_000_000,
            bucket="offload",
            prefix="seg/",
            readable=True,
        ),
    ),
    "trash-of-a-copy": (
        deletion.encode_trash,
        deletion.decode_trash,
        deletion.Trash(
            segment_id=SEGMENT,
            upload_id="",
            reason="moved",
            decided_ms=1_700_000_000_000,
            bucket="eu",
            prefix="topics/",
            readable=True,
            of_copy=True,
        ),
    ),
    "trash-with-a-copy": (
        deletion.encode_trash,
        deletion.decode_trash,
        deletion.Trash(
            segment_id=SEGMENT,
            upload_id="",
            reason="age",
            decided_ms=1_700_000_000_000,
            bucket="offload",
            prefix="seg/",
            readable=True,
            mirror_bucket="eu",
            mirror_prefix="topics/",
        ),
    ),
    "mirror": (
        copy.encode,
        copy.decode,
        copy.CopyAttempt(
            segment_id=SEGMENT,
            bucket="eu",
            prefix="topics/",
            part_bytes=8 << 20,
            begun_ms=1_700_000_000_000,
            upload_id="upload-1",
        ),
    ),
    "mirror-of-a-ledger": (
        copy.encode,
        copy.decode,
        copy.CopyAttempt(
            segment_id=SEGMENT, bucket="eu", prefix="", part_bytes=8 << 20, begun_ms=1_700_000_000_000, ledger_id=7
        ),
    ),
    "verified": (
        verified.encode,
        verified.decode,
        verified.Verified(
            {SEGMENT: verified.SegmentVerified(verified_ms=1_700_000_000_000, level="data", flaws=1, flaw="a block")},
            verified.Cursor(OTHER, 3),
        ),
    ),
    "verified-in-runs": (
        verified.encode,
        verified.decode,
        verified.Verified(
            {},
            runs=(
                verified.Run(
                    range=SegmentRange(Position(1, 2), Position(3, 4)), verified_ms=1_700_000_000_000, level="full"
                ),
            ),
        ),
    ),
}
"""How it is written and read, and what; by the name of the line in the file."""


def lines() -> dict[str, bytes]:
    """Return the bytes of the file by name."""
    found = (line.split() for line in FILE.read_text(encoding="ascii").splitlines())
    return {name: bytes.fromhex(data) for name, data in found}


if __name__ == "__main__":
    for name, (encode, _, value) in VALUES.items():
        print(name, encode(value).hex())  # noqa: T201 - its output is the file
