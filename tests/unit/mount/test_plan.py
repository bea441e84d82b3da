"""Which ledgers of a topic another cluster is given, and how a list names them."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import START, LedgerEnd, OffloadMethod, Position
from offloaderd.core.names.managed_ledgers import mounted_entries, mounted_id
from offloaderd.ledgers.pulsar.managed_ledger import decode
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.mount import lists
from offloaderd.mount.lists import INDEX, MOUNTED, encode_list
from offloaderd.mount.plan import AtGap, MountPlan, plan_mount
from offloaderd.upkeep.bucket_map import readable_map
from offloaderd.upkeep.grants.broker_request import Extent, extent_of
from tests.unit.upkeep.site import TOPIC
from tests.unit.upkeep.test_rebuild_plan import HISTORY, known

ATTEMPT = UUID("6f1ef6d2-0b4c-4b51-9f30-0d9c1b1a7f10")
"""A broker's."""
PLACEHOLDER = (1 << 32) - 1
ROW = (
    known(1, (3, 0, 9), (5, 0, 4), ends={3: LedgerEnd(10, 5)}),
    known(2, (5, 5, 7)),
    known(3, (5, 8, 9), (8, 0, 3), ends={5: LedgerEnd(10, 8)}),
)


def ledgers(plan: MountPlan) -> list[tuple[int, int]]:
    """Return the ledgers and their numbers of entries."""
    return [(one.ledger_id, one.entries) for one in plan.ledgers]


def left_out(plan: MountPlan) -> list[str]:
    """Return the ranges that the bucket has and the list does not name."""
    return [str(part.range) for part, _ in plan.left_out]


def test_a_whole_topic_comes_up_with_its_open_ledger_as_far_as_it_was_offloaded() -> None:
    """Each ledger once, of as many entries as all its segments hold, and all of their bytes."""
    plan = plan_mount(readable_map(TOPIC, ROW), AtGap.REFUSE)
    assert ledgers(plan) == [(3, 10), (5, 10), (8, 4)]
    assert (plan.entries, plan.size_bytes, plan.begin, plan.end) == (24, 240, Position(3, 0), Position(8, 3))
    assert not plan.undecided
    assert not plan.left_out


def test_recorded_losses_are_told_and_decide_nothing() -> None:
    """They were lost before the topic was offloaded: the old cluster did not have them either."""
    plan = plan_mount(readable_map(TOPIC, HISTORY), AtGap.REFUSE)
    assert len(plan.losses) == 1
    assert not plan.undecided


@pytest.mark.parametrize(
    ("at_gap", "expected", "left"),
    [
        (AtGap.REFUSE, [(3, 10), (5, 5), (8, 4)], ["5:8..5:9"]),
        (AtGap.SKIP, [(3, 10), (5, 5), (8, 4)], ["5:8..5:9"]),
        (AtGap.STOP, [(3, 10), (5, 5)], ["5:8..5:9", "8:0..8:3"]),
    ],
)
def test_a_gap_is_decided_by_an_operator(at_gap: AtGap, expected: list[tuple[int, int]], left: list[str]) -> None:
    """Its ledger comes up to the gap; what is behind it in the ledger cannot be named at all."""
    plan = plan_mount(readable_map(TOPIC, [ROW[0], ROW[2]]), at_gap)
    assert ledgers(plan) == expected
    assert left_out(plan) == left
    assert plan.undecided is (at_gap is AtGap.REFUSE)


@pytest.mark.parametrize("at_gap", AtGap)
def test_a_ledger_whose_front_is_gone_does_not_come_up(at_gap: AtGap) -> None:
    """A list names a ledger from entry 0 on: retention may have deleted the first entries."""
    plan = plan_mount(readable_map(TOPIC, ROW[1:]), at_gap)
    assert ledgers(plan) == [(8, 4)]
    assert plan.entries_left_out == 5
    assert plan.undecided is (at_gap is AtGap.REFUSE)


def test_a_gap_before_everything_stops_nothing() -> None:
    """There is nothing before it to stop at."""
    found = readable_map(TOPIC, ROW)
    gap = readable_map(TOPIC, [ROW[0], ROW[2]]).gaps[0]._replace(after=START)
    plan = plan_mount(TopicMap(TOPIC, found.segments, gaps=(gap,)), AtGap.STOP)
    assert ledgers(plan) == [(3, 10), (5, 10), (8, 4)]


@pytest.mark.parametrize("compressed", [False, True])
def test_the_list_is_one_that_a_broker_reads(monkeypatch: pytest.MonkeyPatch, *, compressed: bool) -> None:
    """All ledgers are offloaded and gone from BookKeeper; the last is a placeholder that was closed without entries."""
    if compressed:
        monkeypatch.setattr(lists, "PLAIN_BYTES_MAX", 10)
    plan = plan_mount(readable_map(TOPIC, ROW), AtGap.REFUSE)
    content = encode_list(plan, placeholder=PLACEHOLDER, index_max=41)
    assert content.startswith(b"\x47\x78") is compressed
    found = decode(content, key="node")
    assert dict(found.properties) == {MOUNTED: str(PLACEHOLDER), INDEX: "41"}
    *mounted, last = found.ledgers
    assert [(one.ledger_id, one.entries, one.size_bytes) for one in mounted] == [(3, 10, 100), (5, 10, 100), (8, 4, 40)]
    for one in mounted:
        assert one.closed
        assert one.offload is not None
        assert (one.offload.complete, one.offload.bookkeeper_deleted, one.offload.driver) == (True, True, "offloaderd")
        assert one.offload.object_id is not None
        assert mounted_entries(one.offload.object_id) == one.entries
        assert one.offload.properties["driver"] == "offloaderd"
    assert (last.ledger_id, last.entries, last.closed, last.offload) == (PLACEHOLDER, 0, True, None)


def test_a_ledger_that_a_broker_offloaded_itself_is_listed_as_its_broker_did() -> None:
    """Under the id of its objects and the driver that wrote them; ours asks the daemon for it by bucket and id."""
    one = known(7, (3, 0, 9)).segment
    found = TopicMap(TOPIC, (replace(one, driver="aws-s3", method=OffloadMethod.LEDGER_BASED, prefix=""),))
    content = encode_list(plan_mount(found, AtGap.REFUSE), placeholder=PLACEHOLDER, index_max=None)
    offload = decode(content, key="node").ledgers[0].offload
    assert offload is not None
    assert (offload.driver, offload.object_id) == ("aws-s3", one.segment_id)
    assert dict(offload.properties) == {"bucket": one.bucket}


def test_a_topic_without_indexes_gets_none() -> None:
    """Brokers would count from there."""
    content = encode_list(plan_mount(readable_map(TOPIC, ROW), AtGap.REFUSE), placeholder=PLACEHOLDER, index_max=None)
    assert INDEX not in decode(content, key="node").properties


@pytest.mark.parametrize("entries", [1, 50_000, (1 << 62) - 1])
def test_the_id_of_a_mounted_ledger_has_its_number_of_entries(entries: int) -> None:
    """It is a UUID of version 8, which no broker makes."""
    found = mounted_id(entries)
    assert mounted_entries(found) == entries
    assert (found.version, found.variant) == (8, UUID(int=0x8000_0000_0000_0000).variant)
    assert mounted_entries(ATTEMPT) is None


@pytest.mark.parametrize("entries", [-1, 0, 1 << 62])
def test_a_ledger_without_entries_has_no_such_id(entries: int) -> None:
    """Nor has one of more entries than the id can say."""
    with pytest.raises(InvalidInput):
        mounted_id(entries)


def test_a_mounted_ledger_reaches_as_far_as_its_list_says() -> None:
    """Also if it was never closed; not for a broker's own attempt, and only if all of it is there."""
    found = readable_map(TOPIC, ROW)
    assert extent_of(found, 8, mounted_id(4)) == Extent(4, 40)
    assert extent_of(found, 8, ATTEMPT) is None
    assert extent_of(found, 8, mounted_id(5)) is None
    assert extent_of(found, 5, ATTEMPT) == Extent(10, 100)
    assert extent_of(found, 5, mounted_id(5)) == Extent(5, 50)
    assert extent_of(found, 5, mounted_id(11)) is None
    broken = readable_map(TOPIC, [ROW[0], ROW[2]])
    assert extent_of(broken, 5, mounted_id(5)) == Extent(5, 50)
    assert extent_of(broken, 5, mounted_id(8)) is None
    assert extent_of(readable_map(TOPIC, ROW[1:]), 5, mounted_id(10)) is None
