"""A refusal that stands stops whatever deletes or grants of its topic, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from offloaderd.core.errors import CorruptData, Fenced, IdentityRefused
from offloaderd.core.model import RefusalKind, TierRetention
from offloaderd.metadata import identity, paths
from offloaderd.metadata.records import identity as identity_record
from offloaderd.metadata.records.identity import Acceptance
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.upkeep import deletion
from offloaderd.upkeep.grants.grants import Grants
from offloaderd.upkeep.retention import Retention
from offloaderd.upkeep.settings import GrantSettings, RetentionSettings
from tests.unit.rigs.owned import Owned, offloaded_topic
from tests.unit.rigs.rig import TOPIC, enabled, offloader_of, turn, until

if TYPE_CHECKING:
    from offloaderd.core.model import TopicName
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.segment.claim.refusals import TopicIdentity
    from tests.unit.rigs.rig import Rig

BEHIND = RefusalKind.LIST_BEHIND
OPTIONS = GrantSettings(readback=False, interval_s=60.0)


async def _refused(owned: Owned) -> TopicIdentity:
    found = owned.offloader.identity
    assert await found.refuse(BEHIND, "the newest listed ledger is 12, 20 is committed", "newest 12")
    return found


async def _accept(rig: Rig, evidence: str, kind: RefusalKind = BEHIND) -> None:
    """Do what the operator's command does."""
    store = rig.tree.connect()
    record, version = await identity.load(store, TOPIC)
    assert version is not None
    accepted = record.accepting(Acceptance(kind=kind, evidence=evidence, by="ann", at_ms=1))
    await store.replace(paths.identity(TOPIC), identity_record.encode(accepted), version)


async def test_a_refusal_is_recorded_told_once_and_shown() -> None:
    """It stands in the topic's record with what was found, in the log once, in metric and status; and goes as told."""
    rig = await offloaded_topic(10)
    owned = await Owned.claim(rig)
    with capture_logs() as logs:
        found = await _refused(owned)
        await _refused(owned)
    told = [one for one in logs if one["event"] == "identity.refused"]
    assert [(one["kind"], one["log_level"]) for one in told] == [("list-behind", "error")]
    shown = {"topic": str(TOPIC), "kind": "list-behind"}
    assert rig.metrics.registry.get_sample_value("offloaderd_identity_refusals", shown) == 1
    assert [one.kind for one in owned.offloader.status().refusals] == ["list-behind"]
    why = await identity.deletion_refused(rig.tree.connect(), TOPIC)
    assert "list-behind: the newest listed ledger is 12" in why
    assert identity_record.hint(BEHIND) in why
    await found.clear(BEHIND)
    await found.clear(BEHIND)
    assert await identity.deletion_refused(rig.tree.connect(), TOPIC) == ""
    assert rig.metrics.registry.get_sample_value("offloaderd_identity_refusals", shown) is None


async def test_what_an_operator_has_accepted_is_not_refused_again() -> None:
    """The same evidence passes from then on; other evidence of the same kind does not."""
    rig = await offloaded_topic(10)
    found = await _refused(await Owned.claim(rig))
    await _accept(rig, "newest 12")
    assert not await found.refuse(BEHIND, "the newest is 12", "newest 12")
    await found.stop(BEHIND, "the newest is 12", "newest 12")
    assert await found.accepted(BEHIND, "newest 12")
    assert found.refusals == ()
    with pytest.raises(IdentityRefused, match="the newest is 11"):
        await found.stop(BEHIND, "the newest is 11", "newest 11")


async def test_a_refusal_and_a_word_of_an_operator_that_meet_are_both_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record has changed since it was read: it is read again, and the finding is not lost."""
    rig = await offloaded_topic(10)
    found = await _refused(await Owned.claim(rig))
    load, early = identity.load, [True]

    async def slow(store: MetadataStore, topic: TopicName) -> identity.Stored:
        stored = await load(store, topic)
        if early:
            early.clear()
            await _accept(rig, "newest 12")
        return stored

    monkeypatch.setattr(identity, "load", slow)
    assert await found.refuse(RefusalKind.OTHER_SOURCE, "another cluster", "cluster b")
    record = (await load(rig.tree.connect(), TOPIC)).record
    assert [one.evidence for one in record.refusals if one.kind == RefusalKind.OTHER_SOURCE] == ["cluster b"]
    assert record.accepts(BEHIND, "newest 12")


async def test_a_deposed_owner_refuses_nothing() -> None:
    """The record is the owner's, under its epoch."""
    rig = await offloaded_topic(10)
    deposed = await Owned.claim(rig)
    await Owned.claim(rig)
    with pytest.raises(Fenced):
        await _refused(deposed)
    assert await identity.deletion_refused(rig.tree.connect(), TOPIC) == ""


async def test_the_next_owner_shows_what_stands() -> None:
    """Who claims the topic reads the refusals first, and offloads on where no check stops it."""
    rig = await offloaded_topic(10)
    await _refused(await Owned.claim(rig))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        assert [one.evidence for one in topic.status().refusals] == ["newest 12"]


async def test_nothing_leaves_the_map_while_a_refusal_stands() -> None:
    """Retention of every kind waits, and an operator's word is refused with the reason (P1)."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    found = await _refused(owned)
    assert rig.ledgers is not None
    listed = [one.ledger_id for one in await rig.ledgers.ledgers(TOPIC)]
    for ledger_id in listed:
        await rig.ledgers.delete(TOPIC, ledger_id)
    book = owned.book(retention=TierRetention.LIMITED, retention_bytes=1)
    retention = Retention(owned.context, None, RetentionSettings(follow_lag_s=0.0), book)
    await retention.run_once(owned.offloader, {})
    with pytest.raises(IdentityRefused, match="list-behind"):
        await retention.mark_now(owned.offloader, listed[:1])
    with pytest.raises(IdentityRefused, match="list-behind"):
        await retention.mark(owned.offloader, listed[:1], dry_run=True)
    assert len((await catalog.load(rig.tree.connect(), TOPIC)).segments) == 2
    await found.clear(BEHIND)
    await retention.run_once(owned.offloader, {})
    assert len((await catalog.load(rig.tree.connect(), TOPIC)).segments) == 1


async def test_the_trash_stays_while_a_refusal_stands() -> None:
    """What is on the trash list is deleted once the refusal is gone (P1)."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    oldest = owned.offloader.map.segments[0]
    assert await owned.offloader.record.remove_oldest(oldest, "age")
    found = await _refused(owned)
    assert await owned.empty_trash() == 1
    assert len(await rig.leftovers()) == 3
    await found.clear(BEHIND)
    assert await owned.empty_trash() == 0
    assert await rig.leftovers() == []


async def test_the_trash_goes_after_an_operator_has_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner that left it there looks again: nothing else may happen to the topic (P5)."""
    monkeypatch.setattr(deletion, "KEPT_S", 0.01)
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    assert await owned.offloader.record.remove_oldest(owned.offloader.map.segments[0], "age")
    kind = RefusalKind.METADATA_WENT_BACK  # no check takes it back by itself
    assert await owned.offloader.identity.refuse(kind, "a segment is ahead", "by hand")
    with capture_logs() as logs:
        async with rig.engine("two") as engine:
            await offloader_of(engine)
            await until(lambda: any(one["event"] == "trash.blocked" for one in logs))
            await _accept(rig, "by hand", kind)
            while await rig.leftovers():
                await turn()


async def test_no_ledger_is_granted_or_deleted_at_the_source_while_a_refusal_stands() -> None:
    """Neither a new grant is written, nor does the embedded store act on one that there is (P3)."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    found = await _refused(owned)
    assert rig.ledgers is not None
    before = await rig.ledgers.ledgers(TOPIC)
    grants = Grants(owned.context, rig.ledgers, OPTIONS, owned.book(deletion_lag_s=0.0), daemon_id="one")
    assert await grants.run_once(owned.offloader, {}) == {}
    assert await rig.tree.connect().children(paths.grants(TOPIC)) == []
    assert await rig.ledgers.ledgers(TOPIC) == before
    await found.clear(BEHIND)
    granted = await grants.run_once(owned.offloader, {})
    granted = await grants.run_once(owned.offloader, granted)
    assert granted


async def test_an_unreadable_record_refuses() -> None:
    """Who cannot read what is refused deletes nothing."""
    rig = await offloaded_topic(10)
    await rig.tree.connect().create(paths.identity(TOPIC), b"\xff")
    with pytest.raises(CorruptData):
        await identity.deletion_refused(rig.tree.connect(), TOPIC)
