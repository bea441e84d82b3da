"""Topics over several daemons: who joins gets a share, who leaves gives it away, no topic stays without owner."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from offloaderd.core.aio import race
from offloaderd.core.errors import Transient
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names.patterns import of_topic
from offloaderd.fleet import ownership
from offloaderd.fleet.supervisor import SharedContext, Supervisor
from offloaderd.metadata import paths
from offloaderd.metadata.records import ownership as records
from offloaderd.metadata.records.ownership import DaemonNode
from offloaderd.policy.records import TopicPolicy
from offloaderd.testing.faults import Faults, FaultyMetadata, FaultyStore
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.rigs.fleet import QUICK, TOPICS, Fellow, belong, epochs, fellow, settled
from tests.unit.rigs.rig import Rig, memory_ledgers, payloads, until, until_offloaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from offloaderd.metadata.port import Session, Step
    from offloaderd.testing.memory.metadata import MemoryMetadata


async def enabled_rig() -> Rig:
    """A rig on which all topics hold entries."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    for topic in TOPICS:
        await rig.ledgers.append(topic, payloads(20))
    return rig


async def enable_all(one: Fellow) -> None:
    """Enable every topic."""
    for topic in TOPICS:
        await one.engine.select(of_topic(topic), TopicPolicy(enabled=True))


async def test_topics_are_spread_and_only_those_of_a_leaver_move() -> None:
    """Each of three daemons owns what it ranks first for; when one drains, the others keep theirs and share its own."""
    rig = await enabled_rig()
    async with fellow(rig, "a") as a, fellow(rig, "b") as b:
        async with fellow(rig, "c") as c:
            await enable_all(a)
            await settled(a, b, c)
            before = await epochs(rig)
        await settled(a, b)
        after = await epochs(rig)
        left = belong("abc")["c"]
        assert left
        assert {topic for topic in TOPICS if after[topic] != before[topic]} == left


async def test_a_newcomer_gets_its_share_a_few_at_a_time_when_the_daemons_have_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the time to settle nothing moves; then at most two at a time are sealed, committed and taken by it."""
    rig = await enabled_rig()
    async with fellow(rig, "a", options=QUICK.model_copy(update={"settle_s": 1.5})) as a:
        await enable_all(a)
        await settled(a)
        opened = [a.engine.find(topic) for topic in TOPICS]
        await until(lambda: all(one is not None and one.progress is not None for one in opened))
        moving, move = [], a.engine._assignment._move

        async def counted(topic: TopicName, supervisor: Supervisor) -> None:
            moving.append(len(a.engine._assignment._moving))
            await move(topic, supervisor)

        monkeypatch.setattr(a.engine._assignment, "_move", counted)
        async with fellow(rig, "b") as b:
            share = belong("ab")["b"]
            assert len(share) > 3
            await rig.clock.sleep(0.3)
            assert a.topics() == set(TOPICS)
            await until(lambda: b.topics() == share)
            assert max(moving) == 2
            assert rig.metrics.placement_daemons.labels(standing="working")._value.get() == 2
            assert a.topics() == set(TOPICS) - share
            for topic in share:
                assert [payload for _, payload in await rig.committed(topic)] == payloads(20)
            assert rig.metrics.ownership_moves.labels(outcome="moved")._value.get() == len(share)
            await until(lambda: (one := b.engine.find(min(share))) is not None and one.claim.epoch == 2)


async def test_entries_go_on_through_a_hand_over() -> None:
    """What is appended while a topic moves is committed once, in order, by whichever daemon has it."""
    rig = await enabled_rig()
    assert rig.ledgers is not None
    topic = min(belong("ab")["b"])
    async with fellow(rig, "a") as a:
        await enable_all(a)
        await settled(a)
        async with fellow(rig, "b") as b:
            last = Position(0, 19)
            while b.engine.find(topic) is None:
                last = await rig.ledgers.append(topic, payloads(1))
                await rig.clock.sleep(0.005)
            last = await rig.ledgers.append(topic, payloads(1))
            offloader = b.engine.find(topic)
            assert offloader is not None
            assert await offloader.request_roll() == last
            await until_offloaded(offloader, last)
            found = [position.entry_id for position, _ in await rig.committed(topic)]
            assert found == list(range(last.entry_id + 1))


async def test_a_topic_that_nobody_takes_comes_back_and_is_left_here() -> None:
    """A daemon that is registered and does nothing swallows no topics: the first return, no more are handed to it."""
    rig = await enabled_rig()
    async with fellow(rig, "a") as a:
        await enable_all(a)
        await settled(a)
        dead = rig.tree.connect()
        node = DaemonNode(daemon_id="b", address="b:1", version="0", started_ms=1)
        await dead.create(paths.daemon("b"), records.encode_daemon(node), ephemeral=True)
        share = belong("ab")["b"]
        assert len(share) > QUICK.handovers_max
        returned = rig.metrics.ownership_moves.labels(outcome="returned")._value
        await until(lambda: returned.get() == QUICK.handovers_max and a.topics() == set(TOPICS))
        now = await epochs(rig)
        assert sum(epoch == 2 for epoch in now.values()) == QUICK.handovers_max
        assert all("does not take topics" in a.engine.placed(topic, "a") for topic in share)
        await rig.clock.sleep(0.5)
        assert await epochs(rig) == now
        dead.close()
        await until(lambda: a.engine.placed(min(share), "a") == "")
        assert a.topics() == set(TOPICS)


async def test_topics_that_their_first_leaves_alone_are_adopted_by_the_next() -> None:
    """A new topic whose first daemon does not move is taken after a grace, by one of the others, and no sooner."""
    rig = await enabled_rig()
    async with fellow(rig, "a", options=QUICK.model_copy(update={"grace_s": 1.5})) as a:
        dead = rig.tree.connect()
        node = DaemonNode(daemon_id="b", address="b:1", version="0", started_ms=1)
        await dead.create(paths.daemon("b"), records.encode_daemon(node), ephemeral=True)
        await until(lambda: len(a.engine.placement.members) == 2)
        await enable_all(a)
        own = belong("ab")["a"]
        await until(lambda: len(a.topics()) >= len(own))
        assert a.topics() == own
        await until(lambda: a.topics() == set(TOPICS))
        adopted = rig.metrics.ownership_moves.labels(outcome="adopted")._value.get()
        assert adopted == len(TOPICS) - len(own)
        dead.close()


async def test_a_daemon_that_loses_its_session_keeps_nothing_and_others_take_its_topics() -> None:
    """Its owner nodes go with the session; the others claim at once; when it is back its share returns."""
    rig = await enabled_rig()
    async with fellow(rig, "a") as a, fellow(rig, "b") as b:
        await enable_all(a)
        await settled(a, b)
        b.session.expire()
        await settled(a, b)
        assert all(epoch >= 2 for topic, epoch in (await epochs(rig)).items() if topic in belong("ab")["b"])


async def test_draining_without_an_end_gives_all_away_and_takes_part_again_when_told() -> None:
    """A daemon that is told to drain hands its topics over and stays; told otherwise it gets its share back."""
    rig = await enabled_rig()
    async with fellow(rig, "a") as a, fellow(rig, "b") as b:
        await enable_all(a)
        await settled(a, b)
        b.registration.announce(draining=True)
        await until(lambda: a.topics() == set(TOPICS))
        assert b.topics() == set()
        b.registration.announce(draining=False)
        await settled(a, b)


async def test_the_last_daemon_keeps_its_topics_when_told_to_drain() -> None:
    """With nobody to take them the topics stay where they are looked after."""
    rig = await enabled_rig()
    async with fellow(rig, "a") as a:
        await enable_all(a)
        await settled(a)
        a.registration.announce(draining=True)
        await rig.clock.sleep(0.5)
        assert a.topics() == set(TOPICS)


async def test_a_daemon_that_cannot_reach_the_bucket_gives_its_topics_up_unsealed() -> None:
    """It cannot seal anything; whoever can reach the bucket begins where the last commit ended, and nothing is lost."""
    rig = await enabled_rig()
    assert rig.ledgers is not None
    faults, bucket = Faults(), MemoryStore(rig.clock, part_bytes_min=1)
    async with fellow(rig, "a") as a:
        rig.objects = FaultyStore(bucket, faults)
        async with fellow(rig, "b") as b:
            rig.objects = bucket
            a.engine._home.context = replace(
                a.engine._home.context, upload_context=replace(a.engine._home.context.upload_context, objects=bucket)
            )
            await enable_all(a)
            await settled(a, b)
            share = belong("ab")["b"]
            for operation in ("upload_part", "complete_upload", "put", "create_upload"):
                faults.fail(operation, Transient("no route to the bucket"), times=-1)
            b.registration.announce(impaired="no route to the bucket")
            await until(lambda: a.topics() == set(TOPICS))
            for topic in share:
                offloader = a.engine.find(topic)
                assert offloader is not None
                last = await offloader.request_roll()
                assert last is not None
                await until_offloaded(offloader, last)
                assert [payload for _, payload in await rig.committed(topic)] == payloads(20)
            faults.heal()
            b.registration.announce(impaired="")
            await settled(a, b)


async def test_a_hand_over_that_cannot_seal_is_cut_short() -> None:
    """After handover_s a topic is released with its open segment unsealed, and the next owner resumes it."""
    rig = await enabled_rig()
    faults = Faults()
    rig.objects = FaultyStore(MemoryStore(rig.clock, part_bytes_min=1), faults)
    async with fellow(rig, "a", options=QUICK.model_copy(update={"handover_s": 0.3})) as a:
        await enable_all(a)
        await settled(a)
        faults.fail("complete_upload", Transient("slow"), times=-1)
        async with fellow(rig, "b") as b:
            await settled(a, b)
            faults.heal()


class Slow(FaultyMetadata):
    """A metadata store that carries a transaction out, tells of it, and never answers."""

    def __init__(self, store: MemoryMetadata) -> None:
        super().__init__(store, Faults())
        self.done = asyncio.Event()

    async def transact(self, steps: Sequence[Step]) -> None:
        """See MetadataStore."""
        await super().transact(steps)
        self.done.set()
        await asyncio.Event().wait()


async def test_a_cancelled_claim_leaves_no_owner_behind() -> None:
    """A claim whose transaction was under way when the topic was to be left is given up again."""
    rig = Rig()
    store = rig.tree.connect()
    topic, session = TOPICS[0], await store.session()
    me = DaemonNode(daemon_id="a", address="a:1", version="0", started_ms=1)
    for folder in paths.folders(topic):
        await store.create(folder, b"")
    slow = Slow(store)
    await race(ownership.claim(slow, topic, me, session, rig.clock), slow.done.wait())
    assert await ownership.owner_of(store, topic) is not None
    await ownership.release_unclaimed(store, topic, session, rig.clock)
    assert await ownership.owner_of(store, topic) is None


class Late(FaultyMetadata):
    """A metadata store that carries a claim out under the session that comes after the present one."""

    group: asyncio.TaskGroup

    def __init__(self, store: MemoryMetadata) -> None:
        super().__init__(store, Faults())
        self.under_way = asyncio.Event()
        self._claim: asyncio.Task[None] | None = None

    async def _transact_late(self, session: Session, steps: Sequence[Step]) -> None:
        await session.lost.wait()
        await super().transact(steps)

    async def transact(self, steps: Sequence[Step]) -> None:
        """See MetadataStore; the first one is a claim."""
        if self._claim is not None:
            await super().transact(steps)
        else:
            self._claim = self.group.create_task(self._transact_late(await super().session(), steps))
            self.under_way.set()
            await asyncio.shield(self._claim)

    async def session(self) -> Session:
        """See MetadataStore; what was sent before comes first."""
        if self._claim is not None:
            await self._claim
        return await super().session()


async def test_a_claim_that_is_carried_out_after_its_session_is_given_up_with_the_topic() -> None:
    """Its node would stay for as long as this daemon lives, and the next owner would wait for it as long."""
    rig = Rig()
    store = rig.tree.connect()
    for folder in paths.folders(TOPICS[0]):
        await store.create(folder, b"")
    late = Late(store)
    me = DaemonNode(daemon_id="a", address="a:1", version="0", started_ms=1)
    home = SharedContext(context=rig.context(late, source=None), book=rig.book(late), duties={}, me=me, ended=set())
    supervisor = Supervisor(home, TOPICS[0], TopicPolicy(enabled=True))
    async with asyncio.TaskGroup() as late.group:
        late.group.create_task(supervisor.run())
        await late.under_way.wait()
        store.expire()
        supervisor.stop()
    assert (await store.get(paths.epoch(TOPICS[0]))).version == 0
    assert await ownership.owner_of(store, TOPICS[0]) is None


async def test_what_a_former_run_holds_is_claimed_at_once_and_nothing_else() -> None:
    """Of a session that ended for certain, under the same id; another daemon's claim, or another session's, stands."""
    rig = Rig()
    former, store = rig.tree.connect(), rig.tree.connect()
    topic = TopicName.parse("public/default/x")
    for folder in paths.folders(topic):
        await store.create(folder, b"")
    node = DaemonNode(daemon_id="a", address="a:1", version="0", started_ms=1)
    held = await ownership.claim(former, topic, node, await former.session(), rig.clock)
    session, gone = await store.session(), {(await former.session()).session_id}
    assert held is not None
    for me, ended in ((node, set[str]()), (replace(node, daemon_id="b"), gone)):
        assert await ownership.claim(store, topic, me, session, rig.clock, wait=False, ended=ended) is None
    taken = await ownership.claim(store, topic, node, session, rig.clock, wait=False, ended=gone)
    assert taken is not None
    assert taken.epoch == held.epoch + 1
    former.close()
    owner = await ownership.owner_of(store, topic)
    assert owner is not None
    assert owner.session_id == session.session_id


async def test_a_late_release_leaves_the_next_owner_alone() -> None:
    """Whoever lost its session and releases afterwards does not delete the node of who came next."""
    rig = Rig()
    store, other = rig.tree.connect(), rig.tree.connect()
    topic = TopicName.parse("public/default/x")
    for folder in paths.folders(topic):
        await store.create(folder, b"")
    node = DaemonNode(daemon_id="a", address="a:1", version="0", started_ms=1)
    first = await ownership.claim(store, topic, node, await store.session(), rig.clock)
    assert first is not None
    store.expire()
    second = await ownership.claim(other, topic, replace(node, daemon_id="b"), await other.session(), rig.clock)
    assert second is not None
    await ownership.release(store, first, await store.session(), rig.clock)
    owner = await ownership.owner_of(store, topic)
    assert owner is not None
    assert (owner.daemon_id, owner.epoch) == ("b", 2)
    await ownership.release(other, second, await other.session(), rig.clock)
    assert await ownership.owner_of(store, topic) is None
