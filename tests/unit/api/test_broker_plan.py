"""PlanLedger: where a broker finds entries in the bucket, and what counts as read by it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import google_crc32c
import pytest

from offloaderd.api.gate import CALLER as GATE_CALLER
from offloaderd.api.gate import Caller
from offloaderd.core.entries import decode_entries
from offloaderd.core.errors import EntriesDeleted, Throttled
from offloaderd.core.model import EntryBatch, Position
from offloaderd.core.quotas import Quotas
from offloaderd.protocol.v1 import broker_pb2
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.upkeep.grants.broker_request import Extent
from tests.unit.api.test_broker_service import Served, served
from tests.unit.api.test_manual import CALLER
from tests.unit.rigs.rig import TOPIC, Rig, enabled, payloads, until_offloaded
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATH = "/offloaderd.v1.BrokerService/PlanLedger"
COUNT = 60
ENTRIES = "offloaderd_read_entries_total", {"source": "objects"}


class Signing(MemoryStore):
    """A bucket with signed URLs: its own for each key."""

    host = "bucket"

    def at(self, bucket: str) -> Signing:
        """See SegmentStore; the other bucket has other URLs."""
        other = copy(self)
        other.host = bucket
        return other if bucket == "other" else self

    async def signed_url(self, key: str, valid_s: int) -> str:
        """See SignedUrls."""
        return f"https://{self.host}/{key}?for={valid_s}" if self.host else ""


async def planned(
    one: Served, first: int, last: int = COUNT - 1, batch_bytes: int = 0
) -> broker_pb2.PlanLedgerResponse:
    """Return the plan for entries of ledger 5."""
    request = broker_pb2.ReadLedgerRequest(
        ledger=one.named(5), first_entry_id=first, last_entry_id=last, batch_bytes=batch_bytes
    )
    return await one.service.PlanLedger(request, CALLER)


@asynccontextmanager
async def offloaded(store: MemoryStore) -> AsyncIterator[tuple[Served, list[bytes]]]:
    """Offload a ledger in two segments of several blocks."""
    made = [bytes([number]) * 700 for number in range(COUNT)]
    async with served(Rig(policy=Rig().policy, objects=store), push_only=True) as one:
        topic = await enabled(one.engine)
        for begin, end in ((0, 40), (40, COUNT)):
            topic.offer(EntryBatch(5, begin, made[begin:end]))
            await topic.request_roll()
            await until_offloaded(topic, Position(5, end - 1))
        await one.ensure(5, COUNT, sum(map(len, made)))
        yield one, made


def store() -> Signing:
    """Return a bucket."""
    return Signing(LoopClock(), part_bytes_min=1)


@pytest.mark.parametrize("batch_bytes", [1, 9000, 0])
async def test_blocks_of_a_plan_have_the_entries(batch_bytes: int) -> None:
    """By their bytes, checksums and places alone; a plan ends with its segment, and where it was to end."""
    bucket = store()
    async with offloaded(bucket) as (one, made):
        found: list[bytes] = []
        plans = 0
        while len(found) < COUNT:
            first = len(found)
            plan = await planned(one, first, batch_bytes=batch_bytes)
            plans += 1
            key = plan.url.removeprefix("https://bucket/").removesuffix("?for=300")
            assert plan.valid_ms == 300_000
            for block in plan.blocks:
                data = await bucket.get(key, block.offset, block.length)
                assert (len(data), google_crc32c.value(data)) == (block.length, block.crc32c)
                entries = decode_entries(
                    data,
                    start=block.head_bytes,
                    first_entry_id=block.first_entry_id,
                    count=block.entries,
                    key=key,
                    at=block.offset,
                )
                found += entries[len(found) - block.first_entry_id :]
        assert found == made
        assert plans == {1: 12, 9000: 6, 0: 2}[batch_bytes]
        read = one.service.reader.metrics.registry.get_sample_value
        before = read(*ENTRIES) or 0
        inside = await planned(one, 12, 23)
        assert [(block.first_entry_id, block.entries) for block in inside.blocks] == [(10, 5), (15, 5), (20, 5)]
        assert read(*ENTRIES) == before + 12


async def test_a_plan_is_for_the_place_that_is_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """That may be the mirror; and no plan is larger than the largest, whatever is asked for."""
    async with offloaded(store()) as (one, _):
        monkeypatch.setattr("offloaderd.api.broker.BATCH_BYTES_MAX", 9000)
        plan = await planned(one, 0, batch_bytes=1 << 20)
        assert plan.url.startswith("https://bucket/")
        assert 5000 < sum(block.length for block in plan.blocks) <= 9000
        places = one.service.reader.segments.places
        monkeypatch.setattr(places, "of", lambda segment: [replace(segment, bucket="other"), segment])
        assert (await planned(one, 0)).url.startswith("https://other/")


async def test_what_the_daemon_gives_at_less_cost_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry or two, what a broker wrote, all with a disk cache, what is not in the bucket, without signed URLs."""
    async with offloaded(store()) as (one, _):
        assert not (await planned(one, 30, 30)).blocks
        assert (await planned(one, 30)).blocks
        segments, whole = one.service.reader.segments, (Position(5, 0), Position(5, 39), 9000)
        theirs = replace((await one.engine.topic_map(TOPIC)).segments[0], driver="aws-s3")
        assert not (await segments.stored(TOPIC, theirs, *whole))[1]
        monkeypatch.setattr(segments.fetcher, "disk", object())
        assert not (await planned(one, 30)).url
    async with offloaded(MemoryStore(LoopClock(), part_bytes_min=1)) as (one, _):
        assert not (await planned(one, 30)).blocks
    async with offloaded(bucket := store()) as (one, _):
        bucket.host = ""
        assert not (await planned(one, 30)).blocks
        assert not one.service.reader.metrics.registry.get_sample_value(*ENTRIES)
    async with served(Rig(policy=Rig().policy, objects=store()), push_only=True) as one:
        topic = await enabled(one.engine)
        topic.offer(EntryBatch(5, 0, payloads(10)))
        monkeypatch.setattr("offloaderd.api.broker.extent_of", lambda *_: Extent(10, 0))
        assert not (await planned(one, 0, 9)).blocks


async def test_the_end_of_a_ledger_has_the_next_ones_tables_fetched() -> None:
    """Its broker opens that one next, and its plan would wait for them; in the middle nobody knows where it goes on."""
    made = [bytes([number]) * 700 for number in range(COUNT)]
    async with served(Rig(policy=Rig().policy, objects=store()), push_only=True) as one:
        topic = await enabled(one.engine)
        for ledger_id in (5, 6):
            topic.offer(EntryBatch(ledger_id, 0, made))
            await topic.request_roll()
            await until_offloaded(topic, Position(ledger_id, COUNT - 1))
            await one.ensure(ledger_id, COUNT, sum(map(len, made)))
        following = (await one.engine.topic_map(TOPIC)).segments[-1]
        assert (await planned(one, 0, COUNT - 2)).blocks
        await one.engine.context.upload_context.clock.sleep(1)
        assert not one.service.reader.segments.has_table(following)
        assert (await planned(one, 0)).blocks
        await one.engine.context.upload_context.clock.sleep(1)
        assert one.service.reader.segments.has_table(following)


async def test_what_is_deleted_is_not_planned() -> None:
    """As ReadLedger would not read it: a URL would outlive the deletion's record."""
    async with offloaded(store()) as (one, _):
        await one.retention.mark_now(await one.engine.owned(TOPIC), [5])
        with pytest.raises(EntriesDeleted):
            await planned(one, 0)


async def test_a_plan_is_made_after_the_wait_for_the_rate() -> None:
    """Else its URL would have less time than it says, and a deletion in the meantime would not count."""
    signed_s: list[float] = []

    class Timed(Signing):
        async def signed_url(self, key: str, valid_s: int) -> str:
            signed_s.append(clock.monotonic())
            return await super().signed_url(key, valid_s)

    async with offloaded(Timed(LoopClock(), part_bytes_min=1)) as (one, _):
        clock, account = one.engine.context.upload_context.clock, one.engine.context.accounts.of(TOPIC)

        async def gone() -> None:
            with pytest.raises(EntriesDeleted):
                await planned(one, 0)

        caller = Caller(need=None, path=PATH, rights=None, send_s_max=0.0)
        caller.account = account
        token = GATE_CALLER.set(caller)
        try:
            account.follow(Quotas(read_bytes_per_s=1000))
            account.sent(20_000)
            assert (await planned(one, 0)).blocks
            assert signed_s == [clock.monotonic()]
            async with asyncio.TaskGroup() as group:
                group.create_task(gone())
                await clock.sleep(1)
                await one.retention.mark_now(await one.engine.owned(TOPIC), [5])
        finally:
            GATE_CALLER.reset(token)


async def test_planned_bytes_count_as_read() -> None:
    """For the namespace's sums and its rate, the metrics and the audit log; a plan is a reader while it is made."""
    async with offloaded(store()) as (one, made):
        accounts = one.engine.context.accounts
        account = accounts.of(TOPIC)
        caller = Caller(need=None, path=PATH, rights=None, send_s_max=0.0)
        caller.account = account
        token = GATE_CALLER.set(caller)
        try:
            blocks = (await planned(one, 0)).blocks
            size = sum(block.length for block in blocks)
            assert account.usage.read_bytes == caller.planned_bytes == size > 40 * 700
            read = one.service.reader.metrics.registry.get_sample_value
            assert read(*ENTRIES) == 40
            assert read("offloaderd_read_bytes_total", {"source": "objects"}) == 40 * 700
            account.follow(Quotas(read_bytes_per_s=size // 10))
            await planned(one, 0)
            clock = one.engine.context.upload_context.clock
            before_s = clock.monotonic()
            await planned(one, 0)
            assert clock.monotonic() > before_s
        finally:
            GATE_CALLER.reset(token)
        one.service.reads.readers_max = 0
        with pytest.raises(Throttled):
            await planned(one, 0)
        assert len(made) == COUNT
