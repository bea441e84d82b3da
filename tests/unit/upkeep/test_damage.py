"""Damage of a stored copy, whoever finds it: the source keeps the ledgers, and it is told."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from offloaderd.api.admin import topic_status
from offloaderd.api.inspect import InspectService
from offloaderd.core.errors import CorruptData, Denied, NotFound, Transient
from offloaderd.fleet.hot_tier import HotBuffers
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects.retrying import RetryingReader
from offloaderd.protocol.status import topic_facts
from offloaderd.protocol.v1 import inspect_pb2
from offloaderd.read.reader import TopicReader
from offloaderd.topic.status import describe
from offloaderd.upkeep.flaws import Level
from offloaderd.upkeep.grants import records as grant_records
from offloaderd.upkeep.grants.grants import Grants
from offloaderd.upkeep.grants.revoke_on_damage import GrantRevoker
from offloaderd.upkeep.stored import Site
from offloaderd.upkeep.verify.cluster import TopicVerifier
from tests.patience import PATIENCE_S
from tests.unit.rigs.owned import Owned, offloaded_topic
from tests.unit.rigs.rig import TOPIC, Rig, until
from tests.unit.upkeep.test_grants import OPTIONS
from tests.unit.upkeep.test_grants import _flip as flip
from tests.unit.upkeep.test_grants import _granted as granted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.metadata.records.grant import Grant
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.topic.offloader import TopicOffloader


class Maps:
    """What a daemon that does not own the topic knows of it."""

    def __init__(self, owned: Owned) -> None:
        self._owned = owned

    async def topic_map(self, topic: object) -> TopicMap:
        """What is committed."""
        return self._owned.offloader.map


@asynccontextmanager
async def keeping(rig: Rig) -> AsyncIterator[GrantRevoker]:
    """A daemon that only reads: it has no claim, and keeps what it finds damaged."""
    keeper = GrantRevoker(rig.tree.connect(), rig.store, rig.clock, rig.metrics)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(keeper.run())
        yield keeper
        running.cancel()


async def grants_of(rig: Rig) -> dict[int, Grant]:
    """The grants that there are."""
    return await grant_records.load_all(rig.tree.connect(), TOPIC)


async def until_kept(rig: Rig, ledger_id: int) -> Grant:
    """Wait until a ledger's grant is revoked."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := (await grants_of(rig))[ledger_id]).revoked_ms:
            await asyncio.sleep(0)  # noqa: TID251 - gives up the turn, measures no time
    return found


async def read_all(rig: Rig, owned: Owned, keeper: GrantRevoker) -> int:
    """Read the topic through another daemon's reader; returns how many entries came before an error."""
    engine = rig.context(rig.tree.connect(), source=None)
    maps = Maps(owned)
    reader = TopicReader(
        maps=maps,
        policies=None,  # type: ignore[arg-type]
        objects=engine.upload_context.objects,
        source=None,
        hot=HotBuffers(NOBODY),  # type: ignore[arg-type]
        clock=rig.clock,
        metrics=rig.metrics,
    )
    reader.segments.damaged = keeper.found
    count = 0
    async with reader:
        for segment in owned.offloader.map.segments:
            with suppress(CorruptData):
                async with aclosing(reader.segments.read(TOPIC, segment, segment.begin, segment.end)) as batches:
                    async for batch in batches:
                        count += len(batch.payloads)
    return count


class _Nobody:
    def find(self, topic: object) -> None:
        return None


NOBODY = _Nobody()


async def test_a_read_that_finds_damage_keeps_the_source_and_says_so() -> None:
    """By a daemon that owns nothing; once, however often it is read; the owner's status names it at its next look."""
    rig = await offloaded_topic(10, 10, 5)
    owned = await Owned.claim(rig)
    await granted(owned)
    damaged = owned.offloader.map.segments[1]
    await flip(owned, damaged.keys.data)
    async with keeping(rig) as keeper:
        for _ in range(3):
            assert await read_all(rig, owned, keeper) == 15
        grant = await until_kept(rig, 1)
    assert grant.damaged
    assert damaged.keys.data in grant.revoked_reason
    assert {one: found.in_force for one, found in (await grants_of(rig)).items()} == {0: True, 1: False}
    assert rig.metrics.damaged_copies._value.get() == 1
    await granted(owned, store=owned.ledgers)
    assert [info.ledger_id for info in await owned.ledgers.ledgers(TOPIC)] == [1, 2]
    status = describe(owned.offloader, now_s=rig.clock.monotonic(), wall_ms=rig.clock.wall_ms())
    assert status.damaged_ledgers == (1,)
    assert rig.metrics.damaged_ledgers._values == {str(TOPIC): 1}
    lines = dict(topic_facts(topic_status(status), None))
    assert "copies of ledgers 1;" in lines["DAMAGED"]


async def test_an_owner_that_knows_a_grant_hears_that_another_daemon_took_it_back() -> None:
    """Grants are not read again and again: the folder's version says that one was revoked, and that it was allowed."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    duty = Grants(owned.context, None, OPTIONS, owned.book(), daemon_id="one")
    known = await duty.run_once(owned.offloader, {})
    known = await duty.run_once(owned.offloader, known)
    async with keeping(rig) as keeper:
        await keeper.keep(TOPIC, [0], "damaged")
    known = await duty.run_once(owned.offloader, known)
    assert (known[0].damaged, owned.offloader.damaged_ledgers) == (True, (0,))
    await grant_records.allow(rig.tree.connect(), TOPIC, 0)
    await duty.run_once(owned.offloader, known)
    assert owned.offloader.damaged_ledgers == ()


async def test_an_owner_hears_of_a_grant_that_was_taken_back_while_it_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The notice counts for the next look, which comes at once and not an interval later."""
    owned = await Owned.claim(await offloaded_topic(10))
    options, looks = OPTIONS.model_copy(update={"interval_s": 3600.0}), 0
    duty = Grants(owned.context, None, options, owned.book(), daemon_id="one")
    look = duty.run_once

    async def noticed(offloader: TopicOffloader, known: dict[int, Grant]) -> dict[int, Grant]:
        nonlocal looks
        looks += 1
        found = await look(offloader, known)
        if looks == 1:
            offloader.grants_changed.set()
        return found

    monkeypatch.setattr(duty, "run_once", noticed)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(duty.run(owned.offloader))
        await owned.context.upload_context.clock.sleep(60)
        running.cancel()
    assert looks == 2


async def test_a_verification_keeps_the_source() -> None:
    """It changes nothing but that."""
    rig = await offloaded_topic(10, 10, 5)
    owned = await Owned.claim(rig)
    await granted(owned)
    await flip(owned, owned.offloader.map.segments[1].keys.data)
    sites = [Site(cluster="test", bucket="b", prefix="seg/")]
    async with keeping(rig) as keeper:
        verifier = TopicVerifier(Maps(owned), lambda: RetryingReader(rig.store, clock=rig.clock), sites, keeper.found)
        service = InspectService(None, verifier, None, rig.tree.connect(), keeper.found)  # type: ignore[arg-type]
        request = inspect_pb2.VerifyRequest(topic=str(TOPIC), level=Level.FULL.value)
        async for _ in service.Verify(request, None):  # type: ignore[arg-type]
            pass
        assert (await until_kept(rig, 1)).damaged


async def test_what_was_damaged_on_its_way_to_a_verification_is_no_damage() -> None:
    """It looks twice before it says so: a grant that is taken back stays so until an operator allows it."""
    rig = await offloaded_topic(10, 10, 5)
    owned = await Owned.claim(rig)
    sound, damaged, flipped = rig.store.get, owned.offloader.map.segments[1].keys.data, 0

    async def get(key: str, first: int = 0, length: int | None = None) -> bytes:
        nonlocal flipped
        data = await sound(key, first, length)
        if key != damaged or flipped:
            return data
        flipped = 1
        return data[:-1] + bytes([data[-1] ^ 1])

    rig.store.get = get  # type: ignore[method-assign]
    told: list[str] = []
    sites = [Site(cluster="test", bucket="b", prefix="seg/")]
    retrying_reader = RetryingReader(rig.store, clock=rig.clock)
    verifier = TopicVerifier(Maps(owned), lambda: retrying_reader, sites, lambda _t, _s, bad: told.append(bad))
    reports = [one async for one in verifier.run(TOPIC, Level.FULL)]
    assert flipped == 1
    assert [one.flaws for one in reports] == [[]] * 4
    assert told == []


async def test_what_is_deleted_while_it_is_read_is_no_damage() -> None:
    """An object that is gone is looked for once more, and the segment in the map as it is now."""
    rig = await offloaded_topic(10, 10, 5)
    owned = await Owned.claim(rig)
    await granted(owned)
    _, second, third = owned.offloader.map.segments
    async with keeping(rig) as keeper:
        keeper.found(TOPIC, replace(second, driver="aws-s3"), FLIPPED)  # nobody grants the deletion of a broker's
        assert not keeper._waiting
        keeper.found(TOPIC, second, NotFound("no object"))
        rewritten = replace(second, segment_id=UUID(int=7))
        keeper.found(TOPIC, rewritten, CorruptData(key="k", offset=0, expected=1, found=2))
        await until(lambda: not keeper._waiting)
        await rig.store.delete([third.keys.index])
        keeper.found(TOPIC, third, NotFound("no object"))
        while 2 not in (found := await grants_of(rig)):
            await asyncio.sleep(0)  # noqa: TID251 - gives up the turn, measures no time
    assert [one for one, grant in found.items() if grant.revoked_ms] == [2]


@pytest.mark.parametrize("before", ["legal hold", ""])
async def test_damage_is_added_to_what_was_revoked_before(before: str) -> None:
    """The word of an operator stays, and when it was given."""
    rig = await offloaded_topic(10, 10)
    store = rig.tree.connect()
    await grant_records.revoke(store, TOPIC, 0, reason=before, now_ms=7)
    found = await grant_records.revoke(store, TOPIC, 0, reason="damaged", now_ms=8, damaged=True)
    assert (found.revoked_ms, found.damaged) == (7, True)
    assert found.revoked_reason == "; ".join(filter(None, (before, "damaged")))
    assert await grant_records.revoke(store, TOPIC, 0, reason="again", now_ms=9) == found


class Away:
    """A bucket that does not answer."""

    def at(self, _: str) -> Away:
        """Every bucket is like this."""
        return self

    async def head(self, _: str) -> None:
        """Raise Transient."""
        raise Transient("the store does not answer")


FLIPPED = CorruptData(key="k", offset=0, expected=1, found=2)


async def test_one_find_that_cannot_be_looked_into_holds_up_no_other() -> None:
    """What is said to be missing is asked for again and again; what is corrupt needs nobody's answer."""
    rig = await offloaded_topic(10, 10, 5)
    owned = await Owned.claim(rig)
    await granted(owned)
    first, second, _ = owned.offloader.map.segments
    keeper = GrantRevoker(rig.tree.connect(), Away(), rig.clock, rig.metrics)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        running = group.create_task(keeper.run())
        keeper.found(TOPIC, first, NotFound("no object"))
        await until(lambda: not keeper._queued.is_set())
        keeper.found(TOPIC, second, FLIPPED)
        await until_kept(rig, 1)
        await until(lambda: bool(keeper._waiting))
        running.cancel()
    assert not (await grants_of(rig))[0].revoked_ms


async def test_a_find_that_failed_is_looked_into_when_it_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: nobody knows of it yet."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    await granted(owned)
    load, failures = catalog.load, [Denied("no rights")]

    async def loaded(*arguments: Any) -> TopicMap:  # noqa: ANN401 - as they came
        if failures:
            raise failures.pop()
        return await load(*arguments)

    monkeypatch.setattr("offloaderd.upkeep.grants.revoke_on_damage.catalog.load", loaded)
    segment = owned.offloader.map.segments[0]
    async with keeping(rig) as keeper:
        keeper.found(TOPIC, segment, FLIPPED)
        await until(lambda: not failures and not keeper._inspected)
        keeper.found(TOPIC, segment, FLIPPED)
        await until_kept(rig, 0)


async def test_a_grant_that_was_allowed_too_early_is_taken_back_within_a_minute() -> None:
    """Well before the owner's next look, at which the embedded store would delete by it."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    await granted(owned)
    segment = owned.offloader.map.segments[0]
    async with keeping(rig) as keeper:
        keeper.found(TOPIC, segment, FLIPPED)
        await until_kept(rig, 0)
        await grant_records.allow(rig.tree.connect(), TOPIC, 0)
        await granted(owned)
        assert (await grants_of(rig))[0].in_force
        keeper.found(TOPIC, segment, FLIPPED)
        assert not keeper._waiting
        keeper._inspected[TOPIC, segment.segment_id] -= 60
        keeper.found(TOPIC, segment, FLIPPED)
        await until_kept(rig, 0)


async def test_damage_in_a_ledger_that_is_still_open_is_told() -> None:
    """There is no grant to take back yet; the status says all the same why there will be none."""
    rig = await offloaded_topic(5)
    owned = await Owned.claim(rig)
    assert not owned.offloader.map.ends
    async with keeping(rig) as keeper:
        await keeper.keep(TOPIC, [0], "damaged")
    await granted(owned)
    assert owned.offloader.damaged_ledgers == (0,)
