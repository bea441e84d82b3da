"""Quotas in a running engine: what is used up stops, what is freed goes on, and sums outlive a restart."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from offloaderd.core import quotas as core
from offloaderd.core.errors import Conflict, Transient
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import Scope, TopicPattern, of_topic
from offloaderd.core.quotas import Quotas
from offloaderd.fleet import quotas as keeping
from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata import paths
from offloaderd.metadata.records import codec
from offloaderd.policy import quotas
from offloaderd.policy.records import TopicPolicy
from offloaderd.policy.selection import Outcome
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.memory.metadata import MemoryMetadata
from tests.unit.read.build import sample
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, payloads, until, until_offloaded

NAMESPACE = Scope("public", "default")
OTHER = TopicName("public", "default", "clicks")


def rig_of() -> Rig:
    """Return a rig whose segments end soon."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=0.5))
    rig.ledgers = memory_ledgers(rig.clock)
    return rig


async def limited(rig: Rig, limits: Quotas, scope: Scope = NAMESPACE) -> None:
    """Set quotas, as an administrator does."""
    await quotas.put(rig.tree.connect(), rig.clock, scope, limits, by="alice")


async def test_nothing_more_is_offloaded_of_a_namespace_whose_bytes_are_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stands still with the reason, its entries stay in the source, and it goes on with a higher quota."""
    monkeypatch.setattr(keeping, "SETTLE_S", 2 * keeping.PASS_S)
    rig = rig_of()
    assert rig.ledgers is not None
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, await rig.ledgers.append(TOPIC, payloads(10)))
        await limited(rig, Quotas(stored_bytes=100))
        await until(lambda: topic.policy.paused is not None)
        last = await rig.ledgers.append(TOPIC, payloads(10))
        await rig.clock.sleep(30)
        status = topic.status()
        assert status.state == "paused"
        assert status.paused_by.startswith("the quota stored_bytes = 100 of public/default")
        assert topic.offloaded is not None
        assert topic.offloaded < last
        with pytest.raises(Conflict, match="is paused by the quota stored_bytes = 100") as refused:
            await topic.request_roll()
        assert refused.value.hint == "raise the quota, then ask again"
        labels = {"namespace": "public/default", "quota": "stored_bytes"}
        assert sample(rig.metrics, "offloaderd_namespace_quota", labels) == 100
        assert sample(rig.metrics, "offloaderd_namespace_used", labels) > 1000
        await limited(rig, Quotas())
        await until_offloaded(topic, last)
        await until(lambda: rig.metrics.registry.get_sample_value("offloaderd_namespace_quota", labels) is None)


async def test_a_topic_too_many_is_not_enabled() -> None:
    """By its name that is an error, by a pattern it is left alone; both have the reason."""
    rig = rig_of()
    assert rig.ledgers is not None
    await rig.ledgers.append(OTHER, payloads(1))
    await limited(rig, Quotas(topics=1))
    async with rig.engine() as engine:
        await enabled(engine)
        with pytest.raises(Conflict, match="public/default has 1 topics: its quota is topics = 1"):
            await enabled(engine, topic=OTHER)
        changes = await engine.select(TopicPattern.parse("public/default/*"), TopicPolicy())
        assert {one.topic: one.outcome for one in changes}[OTHER] is Outcome.LEFT_ALONE
        await limited(rig, Quotas(topics=2))
        await until(lambda: engine.context.accounts.at(NAMESPACE).limits.topics == 2)
        await engine.select(TopicPattern.parse("public/default/*"), TopicPolicy())
        await until(lambda: OTHER in engine.enabled())


async def test_the_first_topic_of_a_namespace_has_its_own_quota_and_the_tenants() -> None:
    """What the broker level allows each namespace is not used up by others; a tenant's holds in a new one as well."""
    rig = rig_of()
    await limited(rig, Quotas(topics=1), Scope())
    await limited(rig, Quotas(topics=1), Scope("acme"))
    async with rig.engine() as engine:
        await until(lambda: engine.quotas.levels.keys() == {Scope(), Scope("acme")})
        await enabled(engine)
        await enabled(engine, topic=TopicName("acme", "eu", "orders"))
        with pytest.raises(Conflict, match="acme has 1 topics: its quota is topics = 1"):
            await enabled(engine, topic=TopicName("acme", "us", "orders"))
        labels = {"namespace": "acme", "quota": "topics"}
        assert sample(rig.metrics, "offloaderd_namespace_refused_total", labels) == 1


async def test_a_rate_holds_for_what_is_taken_in() -> None:
    """Of 100 kB at 10 kB/s the last batch begins when the ones before are paid for."""
    rig = rig_of()
    assert rig.ledgers is not None
    await limited(rig, Quotas(write_bytes_per_s=10_000))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        began_s = rig.clock.monotonic()
        last = await rig.ledgers.append(TOPIC, payloads(100))
        for _ in range(9):
            await rig.clock.sleep(0.1)
            last = await rig.ledgers.append(TOPIC, payloads(100))
        await until_offloaded(topic, last)
        assert 4.5 < rig.clock.monotonic() - began_s < 11
        labels = {"namespace": "public/default", "quota": "write_bytes_per_s"}
        assert sample(rig.metrics, "offloaderd_namespace_waited_seconds_total", labels) > 3
        assert sample(rig.metrics, "offloaderd_namespace_written_bytes_total", {"namespace": "public/default"}) == 1e5


async def test_sums_outlive_a_restart_and_are_seen_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bill loses a minute at most; what a daemon stored that is gone is not counted as stored twice."""
    monkeypatch.setattr(keeping, "PASS_S", 1.0)
    monkeypatch.setattr(keeping, "SETTLE_S", 2.0)
    monkeypatch.setattr(keeping, "WRITE_S", 6.0)
    rig = rig_of()
    assert rig.ledgers is not None
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, await rig.ledgers.append(TOPIC, payloads(10)))
        await rig.clock.sleep(3 * keeping.WRITE_S)
        before = engine.quotas.own().namespaces[NAMESPACE]
        assert before.written_bytes == 1000
        assert 0.6 < before.stored_byte_s / (before.stored_bytes * 3 * keeping.WRITE_S) <= 1
    async with rig.engine() as engine:
        await until(lambda: engine.quotas.since_ms > 0)
        own = engine.quotas.own()
        after = own.namespaces[NAMESPACE]
        assert own.since_ms < rig.clock.wall_ms() - 2 * keeping.WRITE_S * 1000
        assert after.written_bytes == 1000
        assert after.stored_byte_s >= before.stored_byte_s * 0.6
    async with rig.engine("two") as engine:
        await until(lambda: "one" in engine.quotas.others)
        account = engine.context.accounts.at(NAMESPACE)
        await until(lambda: account.usage.stored_bytes > 0)
        await rig.clock.sleep(keeping.SETTLE_S + keeping.PASS_S)
        assert account.stored_bytes == engine.quotas.own().namespaces[NAMESPACE].stored_bytes > 0


async def test_sums_outlive_their_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace without topics loses its account, and its line of the bill stays, over a restart as well."""
    monkeypatch.setattr(core, "UNUSED_S", 300.0)
    rig = rig_of()
    assert rig.ledgers is not None
    async with rig.engine(within_s=2000) as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, await rig.ledgers.append(TOPIC, payloads(10)))
        await rig.clock.sleep(2 * keeping.WRITE_S)
        await engine.deselect(of_topic(TOPIC))
        await until(lambda: engine.context.accounts.find(NAMESPACE) is None)
        stored = engine.quotas.sums(NAMESPACE)[0]
        assert stored.written_bytes == 1000
        assert stored.stored_byte_s > 0
        await rig.clock.sleep(2 * keeping.WRITE_S)
    async with rig.engine() as engine:
        await until(lambda: engine.quotas.since_ms > 0)
        assert engine.context.accounts.find(NAMESPACE) is None
        assert engine.quotas.sums(NAMESPACE)[0] == stored


async def test_a_namespace_keeps_its_piece_over_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """New ones are last, whatever their names are and whichever comes back first."""
    monkeypatch.setattr(quotas, "USAGES_A_NODE", 1)
    monkeypatch.setattr(keeping, "PASS_S", 1.0)
    monkeypatch.setattr(keeping, "WRITE_S", 2.0)
    rig = rig_of()
    spaces = [Scope("acme", name) for name in ("z", "y", "a")]
    for new in ([1], [2, 0], []):
        async with rig.engine() as engine:
            for number in new:
                engine.context.accounts.at(spaces[number]).usage.requests += 1
                await rig.clock.sleep(2 * keeping.WRITE_S)
            await rig.clock.sleep(2 * keeping.WRITE_S)
    store = rig.tree.connect()
    written = [await store.get(paths.usage("one", piece)) for piece in range(3)]
    found = [list(quotas.decode_usage(one.value, path="p").namespaces) for one in written]
    assert found == [[spaces[1]], [spaces[2]], [spaces[0]]]


async def test_sums_are_continued_once_though_their_record_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written without an answer holds the sums of the last run already: nobody pays twice."""
    monkeypatch.setattr(keeping, "PASS_S", 1.0)
    monkeypatch.setattr(keeping, "WRITE_S", 6.0)
    rig = rig_of()
    assert rig.ledgers is not None
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, await rig.ledgers.append(TOPIC, payloads(10)))
        await rig.clock.sleep(2 * keeping.WRITE_S)
    replace, unanswered = MemoryMetadata.replace, [1, 2, 3]

    async def without_answer(self: MemoryMetadata, path: str, value: bytes, version: int) -> int:
        found = await replace(self, path, value, version)
        if path.startswith(paths.USAGE) and unanswered:
            raise Transient(f"no answer for write {unanswered.pop()}")
        return found

    monkeypatch.setattr(MemoryMetadata, "replace", without_answer)
    async with rig.engine() as engine:
        await until(lambda: not unanswered)
        await rig.clock.sleep(2 * keeping.WRITE_S)
        assert engine.quotas.own().namespaces[NAMESPACE].written_bytes == 1000


async def test_sums_that_cannot_be_read_are_not_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer daemon wrote them, or they are damaged: the others are known anyway."""
    monkeypatch.setattr(keeping, "PASS_S", 1.0)
    rig = rig_of()
    newer = records_pb2.UsageRecord(since_ms=1, at_ms=2, format=codec.FORMAT + 1).SerializeToString()
    store = rig.tree.connect()
    async with rig.engine() as engine:
        await until(lambda: engine.quotas.since_ms > 0)
    await store.replace(paths.usage("one"), newer, (await store.get(paths.usage("one"))).version)
    await store.create(paths.usage("two"), quotas.encode_usage(quotas.DaemonUsage(since_ms=3, at_ms=4, namespaces={})))
    with capture_logs() as logs:
        async with rig.engine() as engine:
            await rig.clock.sleep(10.0)
            assert "two" in engine.quotas.others
            assert (await store.get(paths.usage("one"))).value == newer
            await store.delete(paths.usage("one"), (await store.get(paths.usage("one"))).version)
            await until(lambda: engine.quotas.since_ms > 0)
    assert [one["path"] for one in logs if one["event"] == "usage.not_exchanged"] == [paths.usage("one")]


async def test_the_use_has_the_age_of_its_oldest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this daemon's comparison or a living daemon's record; unknown until the sums of the last run are read."""
    monkeypatch.setattr(keeping, "PASS_S", 1.0)
    monkeypatch.setattr(keeping, "WRITE_S", 6.0)
    rig = rig_of()
    store = rig.tree.connect()
    async with rig.engine() as engine:
        assert engine.quotas.counted_age_s() is None
        await until(lambda: engine.quotas.since_ms > 0)
        assert engine.quotas.counted_age_s() == pytest.approx(0, abs=0.1)
        await rig.clock.sleep(0.5)
        assert engine.quotas.counted_age_s() == pytest.approx(0.5, abs=0.1)
        record = quotas.DaemonUsage(since_ms=1, at_ms=rig.clock.wall_ms() - 40_000, namespaces={})
        for daemon_id in ("two", "gone"):
            await store.create(paths.usage(daemon_id), quotas.encode_usage(record))
        await until(lambda: len(engine.quotas.others) == 2)
        assert engine.quotas.counted_age_s() == pytest.approx(0, abs=1.1), "neither daemon lives"
        keeper, members = engine.quotas, {"one": engine.placement.me, "two": engine.placement.me}
        keeper._living = lambda: members
        assert keeper.counted_age_s() == pytest.approx(43, abs=4)


async def test_bytes_of_a_topic_that_moves_are_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its former owner's record still has them, or had them before a restart; what is used up for longer counts."""
    monkeypatch.setattr(keeping, "PASS_S", 0.1)
    monkeypatch.setattr(keeping, "SETTLE_S", 0.5)
    rig = rig_of()
    assert rig.ledgers is not None
    await limited(rig, Quotas(stored_bytes=1))
    async with rig.engine() as engine:
        account, keeper = engine.context.accounts.at(NAMESPACE), engine.quotas
        await until(lambda: account.limits.stored_bytes == 1)
        await rig.clock.sleep(keeping.SETTLE_S)
        keeper._stored = lambda: {TOPIC: 60}
        await rig.clock.sleep(keeping.SETTLE_S - 2 * keeping.PASS_S)
        assert (account.stored_bytes, account.over_stored) == (0, "")
        await rig.clock.sleep(3 * keeping.PASS_S)
        assert account.stored_bytes == 60
        assert account.over_stored
        keeper._stored = dict
        await rig.clock.sleep(2 * keeping.PASS_S)
        assert not account.over_stored


async def test_bytes_of_a_topic_that_has_left_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next owner counts them: else the use and the bill of the namespace would have them twice."""
    monkeypatch.setattr(keeping, "PASS_S", 0.1)
    rig = rig_of()
    assert rig.ledgers is not None
    async with rig.engine() as engine:
        topic, account = await enabled(engine), engine.context.accounts.at(NAMESPACE)
        await until_offloaded(topic, await rig.ledgers.append(TOPIC, payloads(10)))
        await until(lambda: account.usage.stored_bytes > 0)
        await engine.deselect(of_topic(TOPIC))
        await until(lambda: account.usage.stored_bytes == 0)
