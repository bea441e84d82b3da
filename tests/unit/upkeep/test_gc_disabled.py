"""The open segment of a disabled topic: when the collector gives it up, and when never."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Fenced, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Confirmed, RefusalKind, TopicName
from offloaderd.format.manifest import LedgerPart
from offloaderd.metadata import paths
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records import identity, ownership
from offloaderd.metadata.records.attempt import Seal, stored_part
from offloaderd.metadata.records.identity import Refusal
from offloaderd.metadata.records.ownership import Epoch
from offloaderd.policy.records import TopicPolicy, encode_policy
from offloaderd.segment.claim.fence import Claim, Fence
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.upkeep.gc.findings import Kind, Verdict
from tests.unit.format.builders import build_segment
from tests.unit.upkeep.site import (
    BUCKET,
    DAY_S,
    OURS,
    PREFIX,
    TOPIC,
    Ground,
    data_key,
    manifest_key,
    runs,
    segment_id,
)

if TYPE_CHECKING:
    from offloaderd.metadata.port import Step

EPOCH = Epoch(epoch=4, daemon_id="one", claimed_ms=1)


async def disabled(ground: Ground) -> str:
    """Leave an old open segment with an upload in a topic that is disabled then; returns the upload."""
    source = MemoryLedgers(clock=ground.clock, ledger_entries_max=10)
    await source.append(TOPIC, [b"x"] * 25)
    ground.source = source
    await ground.begin(2)
    upload_id = await ground.objects.create_upload(data_key(2), metadata=OURS)
    await change(ground, upload_id=upload_id, driver_properties={"bucket": BUCKET, "prefix": PREFIX})
    await ground.metadata.create(paths.epoch(TOPIC), ownership.encode_epoch(EPOCH))
    await set_policy(ground, encode_policy(TopicPolicy(enabled=False)))
    await ground.age()
    return upload_id


async def change(ground: Ground, **changes: object) -> None:
    """Change the attempt."""
    path = paths.attempt(TOPIC)
    node = await ground.metadata.get(path)
    attempt = replace(attempt_record.decode(node.value, path=path), **changes)  # type: ignore[arg-type]
    await ground.metadata.replace(path, attempt_record.encode(attempt), node.version)


async def set_policy(ground: Ground, value: bytes) -> None:
    """Write the topic's policy, whatever it says."""
    node = await ground.metadata.get(paths.policy(TOPIC))
    await ground.metadata.replace(paths.policy(TOPIC), value, node.version)


async def uploads(ground: Ground) -> list[str]:
    """The open uploads that there are."""
    return [one.upload_id async for one in ground.objects.list_uploads()]


async def test_the_open_segment_of_a_disabled_topic_goes_by_the_trash_list(ground: Ground) -> None:
    """A dry run says so; then it becomes a trash record under a new epoch, and a later collection deletes it.

    Readers are not waited for: it was no part of the topic.
    """
    ground.reader_grace_s = 1000 * DAY_S
    upload_id = await disabled(ground)
    (find,) = (await ground.collect(apply=False))[0]
    assert (find.key, find.kind, find.verdict, find.upload_id) == (data_key(2), Kind.UPLOAD, Verdict.DELETE, upload_id)
    assert "disabled" in find.reason
    assert (await ground.metadata.get(paths.attempt(TOPIC))).value
    (find,) = (await ground.collect())[0]
    assert (find.kind, find.verdict) == (Kind.UPLOAD, Verdict.DELETED)
    assert await ground.metadata.children(paths.trash(TOPIC)) == [str(segment_id(2))]
    assert await uploads(ground) == [upload_id]
    node = await ground.metadata.get(paths.epoch(TOPIC))
    assert ownership.decode_epoch(node.value, path="epoch").epoch == 5
    await ground.age()
    (find,) = (await ground.collect())[0]
    assert (find.kind, find.verdict) == (Kind.TRASH, Verdict.DELETED)
    assert await uploads(ground) == []
    assert (await ground.collect())[0] == []


async def test_a_late_owner_is_fenced(ground: Ground) -> None:
    """Who had the topic before, and has not noticed that it ended, records nothing any more."""
    await disabled(ground)
    version = (await ground.metadata.get(paths.epoch(TOPIC))).version
    await ground.collect()
    claim = Claim(TOPIC, EPOCH.epoch, version)
    fence = Fence(ground.metadata, claim, clock=ground.clock, metrics=Metrics())
    steps: list[Step] = []

    async def recorded() -> bool:
        return False

    with pytest.raises(Fenced):
        await fence.settle(steps, recorded)


class Silent(MemoryLedgers):
    """A source that does not answer."""

    async def confirmed(self, topic: TopicName, ledger_id: int) -> Confirmed:
        """Fail."""
        raise Transient("no answer")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("owner", "a daemon works on the topic"),
        ("refused", "metadata-went-back"),
        ("unreadable", "cannot be read"),
        ("unspoken", "enable or disable it"),
        ("finished", "enable the topic"),
        ("rotten", "enable the topic"),
        ("trimmed", "that the source has no more"),
        ("silent", "does not say"),
        ("sourceless", "no ledger source"),
    ],
)
async def test_what_is_in_doubt_stays(ground: Ground, what: str, said: str) -> None:
    """Each reason for which nothing is decided, and it is told."""
    upload_id = await disabled(ground)
    if what == "owner":
        await ground.metadata.create(paths.owner(TOPIC), b"", ephemeral=True)
    elif what == "refused":
        refusal = Refusal(kind=RefusalKind.METADATA_WENT_BACK, found="x", evidence="y", since_ms=1)
        value = identity.encode(identity.TopicIdentityRecord(refusals=(refusal,)))
        await ground.metadata.create(paths.identity(TOPIC), value)
    elif what == "unreadable":
        await set_policy(ground, b"\xff\xff")
    elif what == "unspoken":
        await ground.metadata.delete(paths.policy(TOPIC))
    elif what in {"finished", "rotten"}:
        await ground.objects.put(manifest_key(2), b"rotten", metadata=OURS)
    elif what == "trimmed":
        assert isinstance(ground.source, MemoryLedgers)
        await ground.source.delete(TOPIC, 0)
        await ground.source.delete(TOPIC, 1)
    else:
        ground.source = Silent(clock=ground.clock) if what == "silent" else None
    for apply in (False, True):
        (find,) = (await ground.collect(apply=apply))[0]
        assert (find.kind, find.verdict) == (Kind.UPLOAD, Verdict.KEEP)
        assert said in find.reason
    assert await uploads(ground) == [upload_id]
    assert (await ground.metadata.get(paths.attempt(TOPIC))).value


async def test_an_operator_may_name_what_the_source_has_no_more(ground: Ground) -> None:
    """Named by its id it goes, though its entries are nowhere else; never beside an owner."""
    await disabled(ground)
    ground.source = None
    (find,) = (await ground.collect(also=[2]))[0]
    assert find.verdict is Verdict.DELETED
    assert await ground.metadata.children(paths.trash(TOPIC)) == [str(segment_id(2))]


async def test_what_is_enabled_or_young_is_no_find(ground: Ground) -> None:
    """An open segment of a topic that is offloaded is in order, and so is one that was just begun."""
    await disabled(ground)
    assert (await ground.collect(grace_s=1e12))[0] == []
    await set_policy(ground, encode_policy(TopicPolicy()))
    assert (await ground.collect())[0] == []
    assert (await ground.metadata.get(paths.attempt(TOPIC))).value


@pytest.mark.parametrize("path", [paths.policy(TOPIC), paths.attempt(TOPIC), paths.epoch(TOPIC)])
async def test_who_changes_the_topic_meanwhile_wins(ground: Ground, path: str) -> None:
    """A policy, an attempt or a claim that comes between the look and the transaction leaves all as it is."""
    await disabled(ground)

    class Meddled(MemoryLedgers):
        """Has the node changed while it is asked."""

        async def confirmed(self, topic: TopicName, ledger_id: int) -> Confirmed:
            node = await ground.metadata.get(path)
            await ground.metadata.replace(path, node.value, node.version)
            return Confirmed(24, closed=True)

    ground.source = Meddled(clock=ground.clock)
    (find,) = (await ground.collect())[0]
    assert (find.verdict, "changed" in find.reason) == (Verdict.KEEP, True)
    assert (await ground.metadata.get(paths.attempt(TOPIC))).value
    assert await ground.metadata.children(paths.trash(TOPIC)) == []


@pytest.mark.parametrize("last", [9, 10])
async def test_entries_that_only_the_seal_names_are_missed_as_well(ground: Ground, last: int) -> None:
    """The parts on record may lag behind it: an entry that the source has no more keeps the segment."""
    await disabled(ground)
    part = LedgerPart(
        ledger_id=1, first_entry_id=0, last_entry_id=last, payload_bytes=9, closed=True,
        ledger_entries=last + 1, ledger_bytes=9, closed_ms=1,
    )  # fmt: skip
    seal = Seal(sealed_ms=9, epoch=1, software_version="1", data_bytes=100, part_count=1, ledgers=(part,))
    await change(ground, seal=seal)
    (find,) = (await ground.collect(apply=False))[0]
    assert find.verdict is (Verdict.DELETE if last == 9 else Verdict.KEEP)
    assert ("may hold entries of ledger 1 that the source has no more" in find.reason) is (last == 10)


@pytest.mark.parametrize("last", [9, 10])
async def test_entries_of_parts_that_were_stored_before_a_seal_are_missed_as_well(ground: Ground, last: int) -> None:
    """An owner that died in the middle of a segment recorded parts and no end: they may hold a last copy too."""
    await disabled(ground)
    described = build_segment(runs(1, 0, last + 1)).manifest
    await change(ground, parts=(stored_part("etag", described.data_bytes, described.blocks),))
    (find,) = (await ground.collect(apply=False))[0]
    assert find.verdict is (Verdict.DELETE if last == 9 else Verdict.KEEP)
