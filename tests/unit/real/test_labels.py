"""Requests get the names under which tests look for them."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from offloaderd.core.model import Position, TopicName
from offloaderd.metadata import paths
from offloaderd.metadata.port import Check, Create, Delete, Replace, Step
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records import context
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.metadata.records.context import LedgerContext, LedgerSegment
from offloaderd.objects import keys
from tests.real import labels

TOPIC = TopicName.parse("public/default/a.b")
SEGMENT = UUID(int=7)
ATTEMPT = Attempt(
    segment_id=SEGMENT, begin=Position(1, 0), assigned_ms=0, epoch=1, status=AttemptStatus.ASSIGNED, upload_id="u"
)
LEDGER = LedgerContext(
    segments=(
        LedgerSegment(
            segment_id=SEGMENT,
            begin_entry_id=0,
            end_entry_id=4,
            assigned_ms=1,
            offloaded_ms=2,
            object_bytes=9,
            payload_bytes=5,
        ),
    )
)
FENCE = Check(paths.epoch(TOPIC), 3)


@pytest.mark.parametrize(
    ("label", "steps"),
    [
        ("claim", [Create(paths.owner(TOPIC), b"", ephemeral=True), Replace(paths.epoch(TOPIC), b"", 1)]),
        ("release", [Delete(paths.owner(TOPIC))]),
        ("begin", [FENCE, Create(paths.attempt(TOPIC), b"")]),
        ("note upload", [FENCE, Replace(paths.attempt(TOPIC), attempt_record.encode(ATTEMPT), 0)]),
        ("commit", [FENCE, Create(paths.ledger(TOPIC, 5), b""), Delete(paths.attempt(TOPIC), 1)]),
        ("give up", [FENCE, Create(paths.trash_record(TOPIC, SEGMENT), b""), Delete(paths.attempt(TOPIC), 1)]),
        ("remove", [FENCE, Create(paths.trash_record(TOPIC, SEGMENT), b""), Delete(paths.ledger(TOPIC, 5), 1)]),
        ("note ledger", [FENCE, Replace(paths.ledger(TOPIC, 5), context.encode(LEDGER), 2)]),
        ("mark", [FENCE, Replace(paths.ledger(TOPIC, 5), context.encode(replace(LEDGER, deleted_ms=1)), 2)]),
        ("grant", [FENCE, Create(paths.grant(TOPIC, 5), b"")]),
        ("decide", [FENCE, Replace(paths.grant(TOPIC, 5), b"", 1)]),
        ("enable", [*(Create(folder, b"") for folder in paths.folders(TOPIC)), Create(paths.policy(TOPIC), b"")]),
        ("note loss", [FENCE, Create(paths.loss(TOPIC, "5"), b"")]),
        ("create else", [FENCE, Create(f"{paths.topic(TOPIC)}/else", b"")]),
    ],
)
def test_transactions_are_named_by_what_they_do(label: str, steps: list[Step]) -> None:
    """Whatever nodes they touch; the fence is in nearly all of them."""
    assert labels.of_steps(steps) == label


def test_changes_of_one_node_are_named_by_its_kind() -> None:
    """A daemon's registration has a name of its own."""
    assert labels.of_change("create", paths.daemon("one")) == "register"
    assert labels.of_change("create", paths.policy(TOPIC)) == "create policy"
    assert labels.of_change("delete", paths.trash_record(TOPIC, SEGMENT)) == "delete trash"
    assert labels.of_change("create", paths.topic(TOPIC)) == "create topics"


@pytest.mark.parametrize(
    ("label", "operation", "key"),
    [
        ("put index", "put", keys.SegmentKeys("", SEGMENT).index),
        ("get manifest", "get", keys.SegmentKeys("", SEGMENT).manifest),
        ("head data", "head", keys.SegmentKeys("", SEGMENT).data),
        ("put other", "put", "else"),
        ("upload_part", "upload_part", keys.SegmentKeys("", SEGMENT).data),
    ],
)
def test_requests_for_objects_are_named_by_their_kind(label: str, operation: str, key: str) -> None:
    """An upload's requests can only be for data."""
    assert labels.of_object(operation, key) == label
