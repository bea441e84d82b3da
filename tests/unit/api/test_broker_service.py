"""BrokerService with running engines: what a broker hears of its ledgers, and what it may have deleted."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.api.broker import BrokerService
from offloaderd.api.read import ReadService
from offloaderd.core.errors import Conflict, InvalidInput, MapUnknown, NotFound, Unsound
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import EntryBatch, MirrorRequired, OfferResult, Position
from offloaderd.core.names.patterns import of_topic
from offloaderd.fleet.hot_tier import HotBuffers
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.protocol.conversion import decoded_read_response
from offloaderd.protocol.v1 import broker_pb2, read_pb2
from offloaderd.read.reader import TopicReader
from offloaderd.upkeep.retention import Retention
from offloaderd.upkeep.settings import RetentionSettings
from tests.unit.api.test_manual import CALLER
from tests.unit.fleet.test_engine import appended
from tests.unit.rigs.rig import TOPIC, Rig, enabled, payloads, until_offloaded
from tests.unit.topic.test_triggers import ledger_rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from offloaderd.fleet.engine import Engine
    from offloaderd.upkeep.grants.broker_request import ClosedLedger

WAITING, PUSH, ELSEWHERE, COVERED = (
    broker_pb2.ENSURE_STATE_WAITING,
    broker_pb2.ENSURE_STATE_PUSH,
    broker_pb2.ENSURE_STATE_ELSEWHERE,
    broker_pb2.ENSURE_STATE_COVERED,
)
OBJECT = "6f1ef6d2-0b4c-4b51-9f30-0d9c1b1a7f10"


class Listing:
    """Pulsar's list of the topic's ledgers; None: there is no such topic."""

    def __init__(self, ledger_ids: Collection[int] | None) -> None:
        self.ledger_ids = ledger_ids

    async def listed(self, topic: object) -> Collection[int]:
        """Return them."""
        if self.ledger_ids is None:
            raise NotFound("no such topic")
        return self.ledger_ids


class Served:
    """One daemon's service."""

    def __init__(self, rig: Rig, engine: Engine, reader: TopicReader, register: Listing | None) -> None:
        self.engine = engine
        context = engine.context
        self.retention = Retention(context, register, RetentionSettings(), engine.book)
        reads = ReadService(reader, 1, metrics=rig.metrics)
        self.service = BrokerService(engine, reader, reads, self.retention, register)

    async def ensure(
        self, ledger_id: int, entries: int, length: int, wait_ms: int = 0
    ) -> list[broker_pb2.EnsureLedgerResponse]:
        """Return all reports about a ledger."""
        request = broker_pb2.EnsureLedgerRequest(
            topic=str(TOPIC), ledger_id=ledger_id, last_entry_id=entries - 1, length_bytes=length, wait_ms=wait_ms
        )
        return [one async for one in self.service.EnsureLedger(request, CALLER)]

    def named(self, ledger_id: int, **more: Any) -> broker_pb2.OffloadedLedger:  # noqa: ANN401 - fields of the message
        """Name a ledger as the broker does."""
        return broker_pb2.OffloadedLedger(topic=str(TOPIC), ledger_id=ledger_id, object_id=OBJECT, **more)

    async def delete(self, ledger_id: int) -> str:
        """Return what became of a ledger's deletion."""
        request = broker_pb2.DeleteLedgerRequest(ledger=self.named(ledger_id))
        return (await self.service.DeleteLedger(request, CALLER)).outcome

    async def read(self, ledger_id: int, first: int, last: int) -> list[bytes]:
        """Return entries of a ledger."""
        return await self.read_of(self.named(ledger_id), first, last)

    async def read_of(self, ledger: broker_pb2.OffloadedLedger, first: int, last: int) -> list[bytes]:
        """Return entries of what a broker names, the same in both forms of an answer."""
        request = broker_pb2.ReadLedgerRequest(ledger=ledger, first_entry_id=first, last_entry_id=last, batch_bytes=100)
        found = []
        for request.framed in (False, True):
            answers = [answer async for answer in self.service.ReadLedger(request, CALLER)]
            batches = [decoded_read_response(answer, where="the test")[0] for answer in answers]
            assert all(read_pb2.ReadResponse.FromString(answer).batch.payloads for answer in answers) != request.framed
            found.append([payload for batch in batches for payload in batch.payloads])
        assert found[0] == found[1]
        return found[0]


@asynccontextmanager
async def served(
    rig: Rig, name: str = "one", *, push_only: bool = False, register: Listing | None = None
) -> AsyncIterator[Served]:
    """Run a daemon with the service."""
    async with rig.engine(name, metadata=rig.tree.connect(), push_only=push_only) as engine:
        source = None if push_only else rig.ledgers
        reader = TopicReader(
            maps=engine,
            policies=engine.book,
            objects=rig.store,
            source=source,
            hot=HotBuffers(engine),
            clock=rig.clock,
            metrics=Metrics(),
        )
        async with reader:
            yield Served(rig, engine, reader, register)


def length_of(entries: list[tuple[Position, bytes]], ledger_id: int) -> int:
    """Return the payload bytes of a ledger."""
    return sum(len(payload) for position, payload in entries if position.ledger_id == ledger_id)


async def test_a_closed_ledger_is_covered_and_read_of_a_topic_that_nobody_enabled() -> None:
    """The broker's first word enables the topic; the ledger is sealed at once, verified, and read as it was."""
    rig = ledger_rig(Rig().policy)
    everything = await appended(rig, payloads(15))
    async with served(rig) as one:
        reports = await one.ensure(0, 10, length_of(everything, 0))
        assert [reports[0].state, reports[-1].state] == [WAITING, COVERED]
        assert reports[-1].segments >= 1
        opened = await one.service.OpenLedger(broker_pb2.OpenLedgerRequest(ledger=one.named(0)), CALLER)
        assert (opened.last_entry_id, opened.length_bytes) == (9, length_of(everything, 0))
        assert await one.read(0, 3, 9) == [payload for position, payload in everything if position < (1, 0)][3:]
        with pytest.raises(MapUnknown, match="nothing of ledger 7"):
            await one.service.OpenLedger(broker_pb2.OpenLedgerRequest(ledger=one.named(7)), CALLER)


async def test_a_read_to_the_end_of_a_ledger_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the begin of the next ledger is fetched before the broker opens it; no other read fetches what lies behind."""
    rig = ledger_rig(Rig().policy)
    everything = await appended(rig, payloads(15))
    async with served(rig) as one:
        await one.ensure(0, 10, length_of(everything, 0))
        wanted: list[bool] = []
        read = one.service.reader.read

        def watched(topic: object, **rest: Any) -> Any:  # noqa: ANN401 - as the reader's own
            wanted.append(rest["onward"])
            return read(topic, **rest)  # type: ignore[arg-type]

        monkeypatch.setattr(one.service.reader, "read", watched)
        for first, last, onward in ((0, 9, True), (4, 9, True), (0, 8, False), (3, 3, False)):
            wanted.clear()
            await one.read(0, first, last)
            assert set(wanted) == {onward}


async def test_a_close_that_the_source_hears_of_late_is_looked_for_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker asks before the daemon's source shows the last entries: that takes no whole heartbeat to find out."""
    monkeypatch.setattr("offloaderd.api.broker.HEARTBEAT_S", 3600.0)
    rig = ledger_rig(Rig().policy)
    everything = await appended(rig, payloads(8))
    late = payloads(15)[8:]
    async with served(rig) as one:
        await enabled(one.engine)
        length = length_of(everything, 0) + sum(map(len, late[:2]))
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(one.ensure(0, 10, length))
            await rig.clock.sleep(0.2)
            await appended(rig, late)
        reports = asking.result()
        assert [reports[0].state, reports[-1].state] == [WAITING, COVERED]


async def test_a_call_ends_when_its_caller_will_ask_again() -> None:
    """A ledger that waits for long holds no call of its broker; who asks again hears the end of it."""
    rig = ledger_rig(Rig().policy)
    everything = await appended(rig, payloads(8))
    late = payloads(15)[8:]
    async with served(rig) as one:
        await enabled(one.engine)
        length = length_of(everything, 0) + sum(map(len, late[:2]))
        for _ in range(3):
            assert (await one.ensure(0, 10, length, wait_ms=1))[-1].state == WAITING
        await appended(rig, late)
        while (last := (await one.ensure(0, 10, length, wait_ms=1000))[-1]).state == WAITING:
            pass
        assert last.state == COVERED


async def test_a_broker_that_repeats_its_request_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wish is written down; a later ledger is another one, and so is what has not come after a minute."""
    wishes: list[int] = []

    async def hurry(offloader: object, wanted: ClosedLedger, by: str) -> str:
        wishes.append(wanted.ledger_id)
        return ""

    monkeypatch.setattr("offloaderd.api.broker.request_commit", hurry)
    rig = ledger_rig(Rig().policy)
    await appended(rig, payloads(25))
    async with served(rig) as one:
        await enabled(one.engine)
        for ledger_id in (0, 0, 1, 1, 0):
            assert (await one.ensure(ledger_id, 10, 9, wait_ms=1))[-1].state == WAITING
        assert wishes == [0, 1]
        monkeypatch.setattr("offloaderd.api.broker.REPEAT_S", 0.0)
        await one.ensure(1, 10, 9, wait_ms=1)
        assert wishes[2:] == [1] * len(wishes[2:]) != []


async def test_another_ledger_than_bookkeepers_is_never_called_covered() -> None:
    """With one byte or one entry more in BookKeeper the answer is an error, and its copy stays."""
    rig = ledger_rig(Rig().policy)
    everything = await appended(rig, payloads(15))
    async with served(rig) as one:
        length = length_of(everything, 0)
        await one.ensure(0, 10, length)
        for entries, size in ((10, length + 1), (11, length)):
            with pytest.raises(Unsound, match="BookKeeper"):
                await one.ensure(0, entries, size)


async def test_a_copy_that_lost_an_object_is_not_covered() -> None:
    """The map says that it is there; the bucket is looked at all the same."""
    rig = ledger_rig(Rig().policy)
    everything = await appended(rig, payloads(15))
    async with served(rig) as one:
        await one.ensure(0, 10, length_of(everything, 0))
        segment = (await one.engine.topic_map(TOPIC)).segments[0]
        await rig.store.delete([segment.keys.data])
        with pytest.raises(Unsound, match="missing"):
            await one.ensure(0, 10, length_of(everything, 0))


async def test_a_disabled_topic_is_left_alone() -> None:
    """An operator's word goes over the broker's."""
    rig = ledger_rig(Rig().policy)
    await appended(rig, payloads(1))
    async with served(rig) as one:
        await enabled(one.engine)
        await one.engine.deselect(of_topic(TOPIC))
        everything = await appended(rig, payloads(15))
        with pytest.raises(Conflict, match="disabled"):
            await one.ensure(0, 10, length_of(everything, 0))


async def test_the_owner_is_named_by_the_other_daemons() -> None:
    """Whoever does not own the topic says who does."""
    rig = ledger_rig(Rig().policy)
    everything = await appended(rig, payloads(15))
    async with served(rig, "one") as one:
        await enabled(one.engine)
        async with served(rig, "two") as two:
            while two.engine.find(TOPIC) is None and one.engine.find(TOPIC) is None:
                await asyncio.sleep(0.01)  # noqa: TID251 - one of them will have it
            owner, other = (one, two) if one.engine.find(TOPIC) is not None else (two, one)
            report = (await other.ensure(0, 10, length_of(everything, 0)))[-1]
            assert report.state == ELSEWHERE
            owner_address = "one:1" if owner is one else "two:1"
            assert report.owner_address == owner_address


async def test_a_daemon_without_a_source_requests_what_it_lacks() -> None:
    """PUSH until the last entry was pushed, then covered, although nobody told it of the close before."""
    rig = Rig(policy=Rig().policy)
    made = payloads(10)
    length = sum(map(len, made))
    async with served(rig, push_only=True) as one:
        topic = await enabled(one.engine)
        assert (await one.ensure(5, 10, length))[-1].state == PUSH
        assert topic.offer(EntryBatch(5, 0, made[:6])) is OfferResult.ACCEPTED
        await topic.request_roll()
        await until_offloaded(topic, Position(5, 5))
        assert (await one.ensure(5, 10, length))[-1].state == PUSH
        assert topic.offer(EntryBatch(5, 6, made[6:])) is OfferResult.ACCEPTED
        await topic.request_roll()
        await until_offloaded(topic, Position(5, 9))
        last = (await one.ensure(5, 10, length))[-1]
        assert (last.state, last.segments) == (COVERED, 2)
        assert await one.read(5, 0, 9) == list(made)


async def test_an_end_that_is_told_during_a_commit_is_told_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit came without it, and the broker's next wish is no repetition: it would wait for a minute."""
    made = payloads(10)

    async def unheard(offloader: object, wanted: ClosedLedger, by: str) -> str:
        return ""

    async with served(Rig(policy=Rig().policy), push_only=True) as one:
        topic = await enabled(one.engine)
        assert topic.offer(EntryBatch(5, 0, made)) is OfferResult.ACCEPTED
        with monkeypatch.context() as patched:
            patched.setattr("offloaderd.api.broker.request_commit", unheard)
            assert (await one.ensure(5, 10, sum(map(len, made)), wait_ms=1))[-1].state == WAITING
        await topic.request_roll()
        await until_offloaded(topic, Position(5, 9))
        assert (await one.ensure(5, 10, sum(map(len, made)), wait_ms=1000))[-1].state == COVERED


async def test_a_close_that_is_told_after_later_ledgers_were_offloaded_is_recorded() -> None:
    """Nothing else will say how that ledger ended, and its broker would wait for good."""
    made = payloads(10)
    length = sum(map(len, made))
    async with served(Rig(policy=Rig().policy), push_only=True) as one:
        topic = await enabled(one.engine)
        for ledger_id in (5, 6):
            assert topic.offer(EntryBatch(ledger_id, 0, made)) is OfferResult.ACCEPTED
        await topic.request_roll()
        await until_offloaded(topic, Position(6, 9))
        for ledger_id in (6, 5):
            assert (await one.ensure(ledger_id, 9, length, wait_ms=1))[-1].state == WAITING  # it is longer
            assert (await one.ensure(ledger_id, 10, length, wait_ms=1000))[-1].state == COVERED


async def test_a_ledger_is_covered_once_the_mirror_that_is_demanded_has_it() -> None:
    """A broker deletes by the answer, so it waits, and is told for what; a demand without a mirror never ends."""
    made = payloads(10)
    length = sum(map(len, made))
    demand = OffloadPolicies(mirror="eu/topics/", mirror_required=MirrorRequired.YES)
    async with served(Rig(policy=Rig().policy), push_only=True) as one:
        topic = await enabled(one.engine)
        assert topic.offer(EntryBatch(5, 0, made)) is OfferResult.ACCEPTED
        await topic.request_roll()
        await until_offloaded(topic, Position(5, 9))
        assert (await one.ensure(5, 10, length, wait_ms=1000))[-1].state == COVERED
        one.engine.book.take_over(None, demand)
        last = (await one.ensure(5, 10, length, wait_ms=1))[-1]
        assert last.state == WAITING
        assert "has no copy in the mirror eu/topics/ yet" in last.message
        one.engine.book.take_over(None, replace(demand, mirror=""))
        assert "names none" in (await one.ensure(5, 10, length, wait_ms=1))[-1].message
        one.engine.book.take_over(None, OffloadPolicies())
        assert (await one.ensure(5, 10, length, wait_ms=1))[-1].state == COVERED


async def test_nothing_is_deleted_that_pulsars_list_has_or_may_have() -> None:
    """An attempt that failed is cleaned up by the same call; without the list nobody can tell the two apart."""
    rig = ledger_rig(Rig().policy)
    everything = await appended(rig, payloads(15))
    async with served(rig, register=Listing({0, 1})) as one:
        await one.ensure(0, 10, length_of(everything, 0))
        assert await one.delete(0) == "kept"
        one.service.register = None
        assert await one.delete(0) == "kept"
        one.service.register = Listing(None)
        assert await one.delete(6) == "nothing"
        assert (await one.engine.topic_map(TOPIC)).deleted == {}


async def test_a_name_that_is_no_uuid_is_refused() -> None:
    """Before anything is looked at."""
    async with served(ledger_rig(Rig().policy)) as one:
        request = broker_pb2.OpenLedgerRequest(ledger=broker_pb2.OffloadedLedger(topic="t", object_id="x"))
        with pytest.raises(InvalidInput, match="no object's id"):
            await one.service.OpenLedger(request, CALLER)
