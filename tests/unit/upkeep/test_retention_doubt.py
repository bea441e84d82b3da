"""What retention does in doubt: of the source's list, of ages, and of an order whose topic is released."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from offloaderd.core.errors import Fenced, IdentityRefused, Transient
from offloaderd.core.model import LedgerEnd, RefusalKind
from offloaderd.metadata import paths
from offloaderd.metadata.records import identity as identity_record
from offloaderd.metadata.records.identity import Refusal, TopicIdentityRecord
from offloaderd.upkeep.retention import (
    Retention,
    checked_marks,
)
from offloaderd.upkeep.settings import RetentionSettings
from tests.patience import PATIENCE_S
from tests.unit.rigs.owned import Owned, offloaded_topic
from tests.unit.rigs.rig import TOPIC, turn
from tests.unit.upkeep.test_retention import FOLLOW, Register, _following, _map


async def test_what_puts_the_list_in_doubt_begins_the_lag_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger has to be missing for the whole lag without a refusal, another policy or a strange list between."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    store, register = rig.tree.connect(), Register([1, 2])
    options = FOLLOW.model_copy(update={"follow_lag_s": 3600.0})
    retention = Retention(owned.context, register, options, _following(owned))
    absent: dict[int, float] = {}

    async def is_missing_anew() -> bool:
        known = dict(absent)
        await retention.run_once(owned.offloader, absent)
        return not known and absent.keys() == {0}

    assert await is_missing_anew()
    refusal = Refusal(kind=RefusalKind.METADATA_WENT_BACK, found="x", evidence="y", since_ms=1)
    await store.create(paths.identity(TOPIC), identity_record.encode(TopicIdentityRecord(refusals=(refusal,))))
    await retention.run_once(owned.offloader, absent)
    await store.delete(paths.identity(TOPIC))
    assert await is_missing_anew(), "deletions were refused"

    register.answer = [7, 8]
    await retention.run_once(owned.offloader, absent)
    register.answer = [1, 2]
    assert await is_missing_anew(), "the list had no ledger of ours"

    await Retention(owned.context, register, options, owned.book()).run_once(owned.offloader, absent)
    assert await is_missing_anew(), "the topic did not follow its source"

    async def refused(_: object) -> None:
        raise IdentityRefused("another topic's")

    with monkeypatch.context() as patched:
        patched.setattr(owned.offloader.source_check, "ledgers", refused)
        with pytest.raises(IdentityRefused):
            await retention.run_once(owned.offloader, absent)
    assert await is_missing_anew(), "the source was refused"
    assert owned.offloader.map.floor is None


async def test_of_a_topic_that_does_not_follow_only_what_brokers_deleted_goes() -> None:
    """Of a ledger that a broker offloaded itself nothing is kept once its broker has deleted it; our copies stay."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    theirs, *ours = owned.offloader.map.segments
    owned.offloader.record.map = replace(owned.offloader.map, segments=(replace(theirs, driver="aws-s3"), *ours))
    for ledger_id in (0, 1):
        await owned.ledgers.delete(TOPIC, ledger_id)
    await Retention(owned.context, Register([2]), FOLLOW, owned.book()).run_once(owned.offloader, {})
    assert owned.offloader.map.segments == tuple(ours)
    assert not owned.offloader.map.deleted


async def test_the_stores_clock_says_how_old_an_object_is() -> None:
    """In seconds; of a ledger that a broker offloaded itself that of the data, as it has no manifest."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    retention = Retention(owned.context, None, RetentionSettings(), owned.book())
    segment = owned.offloader.map.segments[0]
    await rig.clock.sleep(50)
    assert [await retention._stored_for(segment, age_s) for age_s in (40.0, 80.0)] == [True, False]
    await rig.store.delete([segment.keys.manifest])
    assert await retention._stored_for(replace(segment, driver="aws-s3"), 40.0)


async def test_an_order_that_is_interrupted_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gave it learns that the topic is being released, or that its owner was deposed, and does not wait on."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    await owned.ledgers.delete(TOPIC, 0)
    retention = Retention(owned.context, None, RetentionSettings(interval_s=3600.0), owned.book())

    async def ordered() -> None:
        await retention.mark(owned.offloader, [0], dry_run=False)

    loop, begun = asyncio.get_running_loop(), asyncio.Event()

    async def for_ever(*_: object) -> None:
        begun.set()
        await loop.create_future()

    duty = loop.create_task(retention.run(owned.offloader))
    await turn()
    with monkeypatch.context() as patched:
        patched.setattr(retention, "mark_now", for_ever)
        order = loop.create_task(ordered())
        await begun.wait()
        duty.cancel()
        await asyncio.wait([duty, order], timeout=PATIENCE_S)
    with pytest.raises(Transient, match="released"):
        order.result()

    duty = loop.create_task(retention.run(owned.offloader))
    await turn()
    await Owned.claim(rig)
    order = loop.create_task(ordered())
    await asyncio.wait([duty, order], timeout=PATIENCE_S)
    with pytest.raises(Fenced):
        order.result()
    with pytest.raises(Fenced):
        duty.result()


def test_the_newest_ledger_may_be_marked_once_it_has_ended() -> None:
    """Without a source as well: nothing is written to it any more."""
    current = _map()
    ended = replace(current, ends={**current.ends, 8: LedgerEnd(10, None)})
    assert checked_marks(ended, [8], None) == [8]
