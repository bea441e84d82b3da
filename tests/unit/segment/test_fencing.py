"""A daemon that was deposed and has not noticed changes nothing, whatever it does and whatever its clock says (P4)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import EntryBatch, OfferResult, Position
from offloaderd.core.names.patterns import of_topic
from offloaderd.metadata.port import Session
from offloaderd.policy.records import TopicPolicy
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import Faults, FaultyMetadata, FaultyStore
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.rigs.rig import (
    TOPIC,
    Rig,
    enabled,
    memory_ledgers,
    offloader_of,
    payloads,
    turn,
    until,
    until_offloaded,
)
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from offloaderd.testing.memory.metadata import MemoryMetadata

DAY_MS = 86_400_000


class Skewed(LoopClock):
    """A clock that is wrong by some time."""

    def __init__(self, skew_ms: int) -> None:
        self._skew_ms = skew_ms

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, as this machine believes."""
        return super().wall_ms() + self._skew_ms


class Oblivious(FaultyMetadata):
    """A metadata store that never says that its session is over, as to a process that does not hear."""

    def __init__(self, store: MemoryMetadata) -> None:
        super().__init__(store, Faults())
        self._store: MemoryMetadata = store
        self._never_lost: Session | None = None

    async def session(self) -> Session:
        """Return the first session again and again."""
        if self._never_lost is None:
            self._never_lost = Session((await self._store.session()).session_id)
        return self._never_lost


def fellow_rig(rig: Rig, skew_ms: int = 0) -> Rig:
    """Return a rig on the same stores with a clock and metrics of its own."""
    return replace(rig, clock=Skewed(skew_ms), metrics=Metrics())


def committed_by(rig: Rig) -> float:
    """Return how many segments the daemon with this rig's metrics has committed."""
    return float(rig.metrics.segments.labels(state="offloaded")._value.get())


@pytest.mark.parametrize("skew_ms", [0, DAY_MS, -DAY_MS])
async def test_a_deposed_daemon_that_notices_nothing_commits_nothing(skew_ms: int) -> None:
    """It goes on with its open segment, whose upload the new owner has as well; only the new owner commits."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=100_000, segment_age_max_s=3600))
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=350)
    deposed = fellow_rig(rig, skew_ms)
    store = rig.tree.connect()
    entries = payloads(500)
    await rig.ledgers.append(TOPIC, entries)
    async with deposed.engine("old", metadata=Oblivious(store)) as old:
        before = await enabled(old)
        await until(lambda: before.taken == Position(1, 149) and before.attempt is not None)
        store.expire()
        async with rig.engine("new") as new:
            after = await offloader_of(new)
            assert (before.claim.epoch, after.claim.epoch) == (1, 2)
            more = payloads(1700, seed=1)
            last = await rig.ledgers.append(TOPIC, more)
            entries += more
            await until(lambda: deposed.metrics.fenced_writes._value.get() > 0)
            await after.request_roll()
            await until_offloaded(after, last)
            assert old.find(TOPIC) is None
            assert committed_by(deposed) == 0
            assert [payload for _, payload in await rig.committed()] == entries
        await until(lambda: old.find(TOPIC) is not None)
    assert [payload for _, payload in await rig.committed()] == entries
    assert await rig.leftovers() == []


@pytest.mark.parametrize("moment", ["upload_part", "complete_upload", "put", "head"])
async def test_a_request_of_a_deposed_daemon_that_arrives_late_changes_nothing(moment: str) -> None:
    """Held up past the take-over, then carried out: what is committed stays whole, and is the new owner's."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=30_000, segment_age_max_s=3600))
    rig.ledgers = memory_ledgers(rig.clock)
    deposed = fellow_rig(rig)
    bucket = Held(MemoryStore(rig.clock, part_bytes_min=1), moment)
    rig.objects, deposed.objects = bucket.plain, bucket
    store = rig.tree.connect()
    entries = payloads(300)
    last = await rig.ledgers.append(TOPIC, entries)
    async with deposed.engine("old", metadata=Oblivious(store)) as old:
        await old.select(of_topic(TOPIC), TopicPolicy(enabled=True))
        await bucket.held.wait()
        store.expire()
        async with rig.engine("new") as new:
            after = await offloader_of(new)
            await after.request_roll()
            await until_offloaded(after, last)
            bucket.free.set()
            more = payloads(400, seed=1)
            last = await rig.ledgers.append(TOPIC, more)
            await after.request_roll()
            await until_offloaded(after, last)
            await until(lambda: old.find(TOPIC) is None)
            assert (committed_by(deposed), committed_by(rig)) == (0, len(after.map.segments))
            assert [payload for _, payload in await rig.committed()] == [*entries, *more]
    assert [payload for _, payload in await rig.committed()] == [*entries, *more]


class Held(FaultyStore):
    """A bucket that one kind of request reaches only when the test lets it, once."""

    def __init__(self, store: MemoryStore, moment: str) -> None:
        super().__init__(store, Faults())
        self.plain = store
        self.held, self.free = asyncio.Event(), asyncio.Event()
        self._moment = moment

    async def _do(self, operation, key, act):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - as the class above
        if operation == self._moment and not self.held.is_set():
            self.held.set()
            await self.free.wait()
        return await super()._do(operation, key, act)


async def test_a_deposed_daemon_acknowledges_nothing_to_whoever_pushes() -> None:
    """What a pusher hears of as durable was committed by the owner: the deposed one never moves its position."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=5_000, segment_age_max_s=3600))
    deposed = fellow_rig(rig)
    store = rig.tree.connect()
    async with deposed.engine("old", metadata=Oblivious(store), push_only=True) as old:
        before = await enabled(old)
        store.expire()
        async with rig.engine("new", push_only=True) as new:
            after = await offloader_of(new)
            assert before.offer(EntryBatch(1, 0, payloads(60))) is OfferResult.ACCEPTED
            assert after.offer(EntryBatch(1, 0, payloads(60))) is OfferResult.ACCEPTED
            await until(lambda: after.offloaded is not None and old.find(TOPIC) is not before)
            assert before.offloaded is None
            await turn()
    assert committed_by(deposed) == 0
    assert [payload for _, payload in await rig.committed()] == payloads(60)
