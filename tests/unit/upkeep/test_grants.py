"""The deletion gate: what is verified before the source may delete, who can take it back, and until when."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from offloaderd.core.errors import Conflict, Fenced, NotFound, OutcomeUnknown, Transient, Unsound
from offloaderd.core.model import LedgerEnd, Loss, Position
from offloaderd.format import manifest_bytes
from offloaderd.metadata import paths
from offloaderd.metadata.port import Replace
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects import keys
from offloaderd.objects.keys import ObjectKind
from offloaderd.testing.faults import Faults, FaultyMetadata, FaultyStore
from offloaderd.upkeep.grants import records as grant_records
from offloaderd.upkeep.grants.copy_check import segments_of
from offloaderd.upkeep.grants.grants import Grants
from offloaderd.upkeep.retention import Retention
from offloaderd.upkeep.settings import GrantSettings, RetentionSettings
from tests.unit.metadata.segments import made
from tests.unit.rigs.owned import Owned, offload_more, offloaded_topic
from tests.unit.rigs.rig import TOPIC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from offloaderd.ledgers.port import LedgerStore
    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metadata.port import Step
    from offloaderd.metadata.records.grant import Grant

OPTIONS = GrantSettings(readback=True, interval_s=1.0)


async def _granted(
    owned: Owned, *, store: LedgerStore | None = None, deletion_lag_s: float = 0.0, readback: bool = True
) -> dict[int, Grant]:
    """Look once; return the grants that are there afterwards."""
    options = OPTIONS.model_copy(update={"readback": readback})
    await Grants(owned.context, store, options, owned.book(deletion_lag_s=deletion_lag_s), daemon_id="one").run_once(
        owned.offloader, {}
    )
    return await grant_records.load_all(owned.rig.tree.connect(), TOPIC)


async def _present(owned: Owned) -> list[int]:
    return [info.ledger_id for info in await owned.ledgers.ledgers(TOPIC)]


async def test_every_complete_ledger_gets_a_grant_that_says_what_was_found() -> None:
    """Each covering segment with size and checksum of its three objects; by whom, when, and from when it may go."""
    rig = await offloaded_topic(15, 10, 8)
    owned = await Owned.claim(rig)
    before_ms = rig.clock.wall_ms()
    grants = await _granted(owned, deletion_lag_s=3600.0)
    assert grants.keys() == {0, 1, 2}
    grant = grants[1]
    first, second = owned.offloader.map.segments[:2]
    assert [(one.segment_id, one.first_entry_id, one.last_entry_id) for one in grant.segments] == [
        (first.segment_id, 0, 4),
        (second.segment_id, 5, 9),
    ]
    data, index, described = grant.segments[0].objects
    assert data.key == keys.SegmentKeys("seg/", first.segment_id).data
    assert (data.size_bytes, index.key) == (first.object_bytes, keys.SegmentKeys("seg/", first.segment_id).index)
    assert described.key == keys.SegmentKeys("seg/", first.segment_id).manifest
    assert None not in {data.crc32c, index.crc32c, described.crc32c}
    assert (grant.entries, grant.readback, grant.daemon_id, grant.epoch) == (
        10,
        True,
        "one",
        owned.offloader.claim.epoch,
    )
    assert before_ms <= grant.verified_ms <= rig.clock.wall_ms()
    assert grant.not_before_ms == second.offloaded_ms + 3_600_000
    assert grant.in_force
    assert rig.metrics.grants._value.get() == 3
    assert await _granted(owned, deletion_lag_s=3600.0) == grants


async def test_without_readback_the_data_is_not_read() -> None:
    """Size and ETag are asked of the store; index and manifest are read all the same."""
    rig = await offloaded_topic(10, 10)
    faults = Faults()
    rig.objects = FaultyStore(rig.store, faults)
    owned = await Owned.claim(rig)
    grant = (await _granted(owned, readback=False))[0]
    assert (grant.segments[0].objects[0].crc32c, grant.readback) == (None, False)
    data_key = grant.segments[0].objects[0].key
    assert f"get {data_key}" not in faults.asked
    assert f"head {data_key}" in faults.asked


async def _cut(owned: Owned, key: str) -> None:
    await owned.rig.store.put(key, (await owned.rig.store.get(key))[:-1])


async def _flip(owned: Owned, key: str, at: int = -20) -> None:
    data = bytearray(await owned.rig.store.get(key))
    data[at] ^= 1
    await owned.rig.store.put(key, bytes(data))


async def _drop(owned: Owned, key: str) -> None:
    await owned.rig.store.delete([key])


async def _foreign(owned: Owned, key: str) -> None:
    described = manifest_bytes.decode(await owned.rig.store.get(key), key=key)
    await owned.rig.store.put(key, manifest_bytes.encode(replace(described, cluster="another")))


@pytest.mark.parametrize(
    ("damage", "of", "reason"),
    [
        (_cut, ObjectKind.DATA, "size"),
        (_flip, ObjectKind.DATA, "corrupt"),
        (_drop, ObjectKind.DATA, "missing_object"),
        (_cut, ObjectKind.INDEX, "corrupt"),
        (_flip, ObjectKind.INDEX, "corrupt"),
        (_drop, ObjectKind.INDEX, "missing_object"),
        (_cut, ObjectKind.MANIFEST, "corrupt"),
        (_flip, ObjectKind.MANIFEST, "corrupt"),
        (_drop, ObjectKind.MANIFEST, "missing_object"),
        (_foreign, ObjectKind.MANIFEST, "corrupt"),
    ],
)
async def test_a_copy_that_is_not_whole_gets_no_grant(
    damage: Callable[[Owned, str], Awaitable[None]], of: ObjectKind, reason: str
) -> None:
    """Missing, short, flipped or foreign objects: no grant for their ledger, an alarm that says which; others go on."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    await damage(owned, owned.offloader.map.segments[1].keys.of(of))
    assert (await _granted(owned, store=owned.ledgers)).keys() == {0, 2}
    assert rig.metrics.source_delete_denied.labels(reason=reason)._value.get() == 1
    await _granted(owned, store=owned.ledgers)
    assert await _present(owned) == [1, 2]


async def test_a_store_that_is_away_grants_nothing_and_alarms_nobody_of_damage() -> None:
    """What cannot be looked at is not granted; other ledgers are, and it is tried again."""
    rig = await offloaded_topic(10, 10)
    faults = Faults()
    rig.objects = FaultyStore(rig.store, faults)
    owned = await Owned.claim(rig)
    faults.fail("head", Transient("away"))
    assert (await _granted(owned)).keys() == {1}
    assert rig.metrics.source_delete_denied.labels(reason="unreachable")._value.get() == 1
    assert (await _granted(owned)).keys() == {0, 1}


def _joined(*segments: CommittedSegment, ends: dict[int, LedgerEnd], losses: tuple[Loss, ...] = ()) -> TopicMap:
    current = TopicMap(TOPIC)
    for segment in segments:
        _, current = current.with_commit(segment, ends)
    return replace(current, losses=losses)


ENDS = {3: LedgerEnd(10, 5), 5: LedgerEnd(10, 8)}


@pytest.mark.parametrize(
    ("topic_map", "ledger_id", "reason"),
    [
        (_joined(made(1, (3, 0, 9)), ends={}), 3, "not_offloaded"),
        (_joined(made(1, (3, 0, 8)), ends=ENDS), 3, "not_offloaded"),
        (_joined(made(1, (3, 1, 9)), ends=ENDS), 3, "gap"),
        (replace(_joined(made(1, (3, 0, 9)), ends=ENDS), deleted={3: 1}), 3, "not_offloaded"),
        (_joined(made(1, (2, 0, 4)), made(2, (3, 0, 9)), ends=ENDS), 3, "gap"),
        (_joined(made(1, (3, 0, 9)), made(2, (5, 2, 9)), ends=ENDS), 3, "gap"),
        (replace(_joined(made(1, (3, 0, 9)), ends=ENDS), ends={3: LedgerEnd(11, 5)}), 3, "gap"),
    ],
)
def test_a_ledger_must_be_whole_and_join_its_neighbours(topic_map: TopicMap, ledger_id: int, reason: str) -> None:
    """Its own entries without a gap, and nothing in doubt between it and what lies before and behind."""
    with pytest.raises(Unsound) as caught:
        segments_of(topic_map, ledger_id)
    assert caught.value.reason == reason


def test_a_recorded_loss_joins_two_segments() -> None:
    """What is known to be lost is no gap: the ledgers around it are whole."""
    a, b = made(1, (2, 0, 4)), made(2, (3, 0, 9))
    loss = Loss(Position(2, 4), Position(3, 0), 0)
    assert segments_of(_joined(a, b, ends=ENDS, losses=(loss,)), 3) == [b]


async def test_the_embedded_store_deletes_by_grant_after_the_lag() -> None:
    """Not before its time; then the ledger goes, the record says since when, and the copy is what is left."""
    rig = await offloaded_topic(10, 10, 5)
    owned = await Owned.claim(rig)
    await _granted(owned, store=owned.ledgers, deletion_lag_s=3600.0)
    await _granted(owned, store=owned.ledgers, deletion_lag_s=3600.0)
    assert await _present(owned) == [0, 1, 2]
    other = await offloaded_topic(10, 10, 5)
    owned = await Owned.claim(other)
    await _granted(owned, store=owned.ledgers)
    grants = await _granted(owned, store=owned.ledgers)
    assert await _present(owned) == [2]
    assert all(grant.source_deleted_ms for grant in grants.values())
    assert (await catalog.load(other.tree.connect(), TOPIC)).source_deleted == {0, 1}
    assert len(await other.committed()) == 25
    assert other.metrics.source_ledgers_deleted._value.get() == 2


async def test_published_grants_delete_nothing() -> None:
    """Without a store that is ours to delete from, grants are written and nothing else happens."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    await _granted(owned)
    grants = await _granted(owned)
    assert await _present(owned) == [0, 1]
    assert not any(grant.source_deleted_ms for grant in grants.values())


async def test_a_revoked_grant_is_not_granted_again_by_itself() -> None:
    """Nothing is deleted, nothing verified anew, until it is allowed; a word given beforehand counts as well."""
    rig = await offloaded_topic(10, 10)
    store, owned = rig.tree.connect(), await Owned.claim(rig)
    await grant_records.revoke(store, TOPIC, 1, reason="legal hold", now_ms=7)
    await _granted(owned)
    await grant_records.revoke(store, TOPIC, 0, reason="look first", now_ms=8)
    again = await grant_records.revoke(store, TOPIC, 0, reason="twice", now_ms=9)
    assert (again.revoked_ms, again.revoked_reason) == (8, "look first")
    grants = await _granted(owned, store=owned.ledgers)
    assert not any(grant.in_force for grant in grants.values())
    assert grants[0].verified_ms
    assert not grants[1].verified_ms
    assert await _present(owned) == [0, 1]
    await grant_records.allow(store, TOPIC, 0)
    with pytest.raises(NotFound):
        await grant_records.allow(store, TOPIC, 0)
    assert (await _granted(owned))[0].in_force
    await _granted(owned, store=owned.ledgers)
    assert await _present(owned) == [1]
    with pytest.raises(Conflict, match="being deleted"):
        await grant_records.revoke(store, TOPIC, 0, reason="too late", now_ms=9)


async def test_a_revocation_that_comes_first_wins_over_the_deletion() -> None:
    """Revoked after the owner looked and before it decided: the decision fails, and the ledger stays."""
    rig = await offloaded_topic(10, 10)
    await _granted(await Owned.claim(rig))
    store = rig.tree.connect()

    class Late(FaultyMetadata):
        """Somebody revokes right before the owner's transaction."""

        async def transact(self, steps: Sequence[Step]) -> None:
            """Revoke, then carry out."""
            if any(step.path == paths.grant(TOPIC, 0) for step in steps):
                await grant_records.revoke(store, TOPIC, 0, reason="stop", now_ms=1)
            await super().transact(steps)

    owned = await Owned.claim(rig, Late(rig.tree.connect(), Faults()))
    await _granted(owned, store=owned.ledgers)
    assert await _present(owned) == [0, 1]
    assert rig.metrics.source_delete_denied.labels(reason="revoked")._value.get() == 1


async def test_a_copy_that_changes_while_it_is_verified_gets_no_grant() -> None:
    """Retention or a job has changed the ledger's context meanwhile: what was verified is not what the map has now.

    So the map is read again, and the ledger gets its grant at the next look.
    """
    rig = await offloaded_topic(10, 10)
    store = rig.tree.connect()

    class Late(FaultyMetadata):
        """The context of a ledger is written right before its first grant is."""

        is_early = True

        async def transact(self, steps: Sequence[Step]) -> None:
            """Write it, then carry out."""
            if self.is_early and any(step.path == paths.grant(TOPIC, 0) for step in steps):
                self.is_early = False
                found = await store.get(paths.ledger(TOPIC, 0))
                await store.transact([Replace(paths.ledger(TOPIC, 0), found.value, found.version)])
            await super().transact(steps)

    owned = await Owned.claim(rig, Late(rig.tree.connect(), Faults()))
    assert sorted(await _granted(owned)) == [1]
    assert sorted(await _granted(owned)) == [0, 1]


async def test_a_revocation_between_a_lost_request_and_its_repetition_wins() -> None:
    """The owner's decision never arrived and it cannot know; the refusal of the second try is no proof of the first."""
    rig = await offloaded_topic(10, 10)
    await _granted(await Owned.claim(rig))
    store = rig.tree.connect()

    class Lost(FaultyMetadata):
        """Loses the first request about the ledger on its way there; then somebody revokes."""

        requests = 0

        async def transact(self, steps: Sequence[Step]) -> None:
            """Lose it, or carry it out."""
            if any(step.path == paths.grant(TOPIC, 0) for step in steps):
                self.requests += 1
                if self.requests == 1:
                    await grant_records.revoke(store, TOPIC, 0, reason="stop", now_ms=1)
                    raise OutcomeUnknown("the connection was lost")
            await super().transact(steps)

    metadata = Lost(rig.tree.connect(), Faults())
    owned = await Owned.claim(rig, metadata)
    await _granted(owned, store=owned.ledgers)
    assert metadata.requests == 2
    assert await _present(owned) == [0, 1]
    assert not (await grant_records.load_all(store, TOPIC))[0].source_deleted_ms


async def test_a_deposed_owner_grants_and_deletes_nothing() -> None:
    """Another daemon has the topic: no grant is written and no ledger deleted by the old one."""
    rig = await offloaded_topic(10, 10)
    old = await Owned.claim(rig)
    await Owned.claim(rig)
    with pytest.raises(Fenced):
        await _granted(old)
    new = await Owned.claim(rig)
    await _granted(new)
    deposed = new
    await Owned.claim(rig)
    with pytest.raises(Fenced):
        await _granted(deposed, store=deposed.ledgers)
    assert await _present(deposed) == [0, 1]


async def test_a_copy_that_changed_since_its_verification_stops_the_deletion() -> None:
    """Between grant and deletion an object vanished, or was replaced: the source keeps the ledger."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    await _granted(owned)
    first, second, _ = owned.offloader.map.segments
    await _drop(owned, keys.SegmentKeys("seg/", first.segment_id).index)
    await _flip(owned, keys.SegmentKeys("seg/", second.segment_id).data)
    await _granted(owned, store=owned.ledgers)
    assert await _present(owned) == [0, 1, 2]
    assert rig.metrics.source_delete_denied.labels(reason="missing_object")._value.get() == 2


async def test_a_deletion_that_was_decided_is_carried_out_by_the_next_owner() -> None:
    """Killed between the decision and the deletion: whoever comes next deletes it, if the copy is there still."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    await _granted(owned)

    class Dying:
        """A store whose process ends."""

        async def delete(self, topic: object, ledger_id: int) -> None:
            """Fail."""
            raise Transient("killed")

    with pytest.raises(Transient):
        await _granted(owned, store=cast("LedgerStore", Dying()))
    assert await _present(owned) == [0, 1]
    owned = await Owned.claim(rig)
    key = keys.SegmentKeys("seg/", owned.offloader.map.segments[0].segment_id).manifest
    stored = await rig.store.get(key)
    await _drop(owned, key)
    await _granted(owned, store=owned.ledgers)
    assert await _present(owned) == [0, 1]  # its copy was damaged in between
    await rig.store.put(key, stored)
    await _granted(owned, store=owned.ledgers)
    assert await _present(owned) == [1]


async def test_the_last_ledger_stays_until_it_is_on_record_what_follows_it() -> None:
    """Else the next owner could not tell whether others came between, and would report a possible loss."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    await _granted(owned)
    await _granted(owned, store=owned.ledgers)
    assert await _present(owned) == [1]
    await offload_more(rig, [5], seed=9)
    owned = await Owned.claim(rig)
    await _granted(owned, store=owned.ledgers)
    assert await _present(owned) == [2]
    assert owned.offloader.map.losses == ()


async def test_grants_of_what_is_gone_everywhere_are_dropped() -> None:
    """A ledger that was deleted here and at its source leaves no record behind."""
    rig = await offloaded_topic(10, 10, 5)
    owned = await Owned.claim(rig)
    await _granted(owned)
    await owned.ledgers.delete(TOPIC, 0)
    await Retention(owned.context, owned.ledgers, RetentionSettings(), owned.book()).mark_now(owned.offloader, [0])
    assert (await _granted(owned)).keys() == {1}


async def test_topics_of_the_first_version_get_their_folder_with_the_first_grant() -> None:
    """Without it their source could delete nothing, for ever."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    await rig.tree.connect().delete(paths.grants(TOPIC))
    await _granted(owned)
    assert await rig.tree.connect().children(paths.grants(TOPIC))


async def test_a_lost_answer_of_a_grant_is_read_back() -> None:
    """The grant was written and its answer lost: it is found, counted once, and never written twice."""
    rig = await offloaded_topic(10, 10)
    faults = Faults()
    faults.lose_answer("transact", times=2)
    owned = await Owned.claim(rig, FaultyMetadata(rig.tree.connect(), faults))
    assert (await _granted(owned)).keys() == {0, 1}
    assert faults.fired == 2
    assert rig.metrics.grants._value.get() == 2


async def test_a_ledger_that_is_revoked_again_while_it_is_allowed_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another allows it and a third revokes it between the look and the deletion: the node's version is the same."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    await _granted(owned)
    store, load = rig.tree.connect(), grant_records.load

    async def revoked(reason: str) -> None:
        path = paths.grant(TOPIC, 0)
        if reason == "once":
            await store.delete(path)
        await grant_records.revoke(store, TOPIC, 0, reason=reason, now_ms=5)

    await revoked("once")

    async def slow(*words: Any) -> grant_records.Stored | None:  # noqa: ANN401 - what it is called with
        found = await load(*words)
        monkeypatch.setattr(grant_records, "load", load)
        await grant_records.allow(store, TOPIC, 0)
        await revoked("again")
        return found

    monkeypatch.setattr(grant_records, "load", slow)
    with pytest.raises(Conflict, match="stays revoked"):
        await grant_records.allow(store, TOPIC, 0)
    found = await load(store, TOPIC, 0)
    assert found is not None
    assert found.grant.revoked_reason == "again"
    await grant_records.allow(store, TOPIC, 0)
    assert await load(store, TOPIC, 0) is None
