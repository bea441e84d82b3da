"""Topics that an operator has paused: sealed, left alone by all else, and resumed at their position."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offloaderd.core.errors import Conflict, NotFound
from offloaderd.core.model import EntryBatch, OfferResult, OffloadMethod, Position, TopicName
from offloaderd.core.names.patterns import TopicPattern, of_topic
from offloaderd.metadata import paths
from offloaderd.policy import updates
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.policy.records import Paused, TopicPolicy, decode_policy, encode_policy
from offloaderd.segment.roll import RollPolicy
from offloaderd.topic.requests import Wanted, Why, planned
from offloaderd.topic.status import Reporter
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, offloader_of, payloads, until, until_offloaded

PAUSED = Paused(1_700_000_000_000, "ipv4:127.0.0.1:1")


@pytest.fixture
def rig() -> Rig:
    """Stores with a ledger source."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    return rig


async def say(rig: Rig, paused: Paused | None, topic: TopicName = TOPIC) -> list[updates.PauseChange]:
    """Pause a topic, or have it go on."""
    return await updates.set_paused(rig.tree.connect(), rig.clock, topic, paused)


async def stored(rig: Rig, topic: TopicName = TOPIC) -> TopicPolicy:
    """Return a topic's policy as it lies in the store."""
    path = paths.policy(topic)
    return decode_policy((await rig.tree.connect().get(path)).value, path=path)


async def test_a_paused_topic_seals_what_it_has_and_takes_nothing_more(rig: Rig) -> None:
    """Entries wait in the source; after resuming all are there, once and in order, whoever owns the topic by then."""
    assert rig.ledgers is not None
    async with rig.engine() as engine:
        topic = await enabled(engine)
        before = await rig.ledgers.append(TOPIC, payloads(30))
        await until(lambda: topic.taken == before)
        assert await say(rig, PAUSED) == [updates.PauseChange(TOPIC, PAUSED, True)]
        await until_offloaded(topic, before)
        behind = await rig.ledgers.append(TOPIC, payloads(20, seed=1))
        await until(lambda: topic.newest == behind)
        status = topic.status()
        assert (status.state, status.paused_ms, status.paused_by) == ("paused", PAUSED.since_ms, PAUSED.by)
        assert status.paused_s > 0
        assert status.lag_entries == 20
        with pytest.raises(Conflict, match="is paused"):
            await topic.request_roll()
        assert (await planned(topic, rig.ledgers, Wanted())).why is Why.PAUSED
        reporter = Reporter(engine.context, engine.statuses)
        await reporter.report()
        assert rig.metrics.registry.get_sample_value("offloaderd_topics_paused") == 1
    async with rig.engine("two") as engine:
        topic = await offloader_of(engine)
        assert topic.status().state == "paused"
        await until(lambda: topic.newest == behind)
        assert topic.offloaded == before
        assert topic.progress is None
        assert await say(rig, None) == [updates.PauseChange(TOPIC, None, True)]
        await until(lambda: topic.taken == behind)
        await topic.request_roll()
        await until_offloaded(topic, behind)
    assert [payload for _, payload in await rig.committed()] == [*payloads(30), *payloads(20, seed=1)]


async def test_a_pushed_topic_commits_what_it_has_accepted_and_takes_no_more(rig: Rig) -> None:
    """What was accepted exists nowhere else: it is sealed; the broker waits, and goes on after resuming."""
    batch = EntryBatch(0, 0, tuple(payloads(10)))
    async with rig.engine(push_only=True) as engine:
        topic = await enabled(engine)
        assert topic.offer(batch) is OfferResult.ACCEPTED
        assert not topic.outage.blocked
        await say(rig, PAUSED)
        await until_offloaded(topic, Position(0, 9))
        assert topic.outage.blocked
        await say(rig, None)
        await until(lambda: not topic.outage.blocked)
        assert topic.offer(EntryBatch(0, 10, tuple(payloads(5)))) is OfferResult.ACCEPTED


async def test_only_resuming_resumes(rig: Rig) -> None:
    """Neither a policy for the topic, nor a pattern, nor one that is taken back, nor disabling and enabling it."""
    async with rig.engine() as engine:
        await enabled(engine)
        await say(rig, PAUSED)
        await engine.select(of_topic(TOPIC), TopicPolicy(enabled=True, segment_bytes_max=77_777))
        assert await stored(rig) == TopicPolicy(enabled=True, segment_bytes_max=77_777, paused=PAUSED)
        await engine.levels.set_topic_policies(TOPIC, OffloadPolicies(segment_age_max_s=9.0))
        assert (await stored(rig)).paused == PAUSED
        await engine.deselect(of_topic(TOPIC))
        await engine.select(of_topic(TOPIC), TopicPolicy(enabled=True))
        assert (await stored(rig)).paused == PAUSED
        await say(rig, None)
        assert await stored(rig) == TopicPolicy(enabled=True)


async def test_a_topic_that_a_pattern_selects_stays_paused_when_the_pattern_changes(rig: Rig) -> None:
    """And the pattern does not rewrite it for being paused."""
    assert rig.ledgers is not None
    await rig.ledgers.append(TOPIC, payloads(1))
    pattern = TopicPattern.parse("public/default/*")
    async with rig.engine() as engine:
        await engine.select(pattern, TopicPolicy(enabled=True))
        await offloader_of(engine)
        await say(rig, PAUSED)
        assert await engine.select(pattern, TopicPolicy(enabled=True), dry_run=True)
        assert not [one for one in await engine.select(pattern, TopicPolicy(enabled=True)) if one.policy is not None]
        await engine.select(pattern, TopicPolicy(enabled=True, segment_bytes_max=77_777))
        found = await stored(rig)
        assert (found.paused, found.segment_bytes_max, found.selected_by) == (PAUSED, 77_777, str(pattern))


async def test_partitions_go_with_their_topic(rig: Rig) -> None:
    """Each of them says so; a rehearsal changes nothing, and saying it again keeps who said it first."""
    assert rig.ledgers is not None
    parts = [TopicName.parse(f"public/default/parted-partition-{number}") for number in range(2)]
    for one in parts:
        await rig.ledgers.append(one, payloads(1))
    whole = TopicName.parse("public/default/parted")
    store = rig.tree.connect()
    async with rig.engine() as engine:
        await engine.select(of_topic(whole), TopicPolicy(enabled=True))
        planned_ones = await updates.set_paused(store, rig.clock, whole, PAUSED, dry_run=True)
        assert {one.topic for one in planned_ones if one.changed} == {whole, *parts}
        assert (await stored(rig, parts[0])).paused is None
        await say(rig, PAUSED, whole)
        for one in parts:
            topic = await offloader_of(engine, one)
            await until(lambda topic=topic: topic.status().state == "paused")  # type: ignore[misc]
        again = await say(rig, replace(PAUSED, by="other"), whole)
        assert {(one.paused, one.changed) for one in again} == {(PAUSED, False)}


async def test_what_is_not_enabled_cannot_be_paused(rig: Rig) -> None:
    """Nor resumed; the hint says how to enable it."""
    with pytest.raises(NotFound, match="not enabled"):
        await say(rig, PAUSED)


def test_a_pause_survives_its_record() -> None:
    """Who and since when; a topic that is not paused has neither."""
    for policy in (TopicPolicy(paused=PAUSED), TopicPolicy()):
        assert decode_policy(encode_policy(policy), path="p") == policy


def test_a_policy_is_held_only_while_a_command_pauses_it() -> None:
    """And keeps its method where entries exist nowhere else."""
    policy = RollPolicy(segment_bytes_max=1, segment_age_max_s=1)
    assert policy.held(None, push_only=False) is policy
    assert policy.held(PAUSED, push_only=False).method is OffloadMethod.NONE
    assert policy.held(PAUSED, push_only=True).method is OffloadMethod.STREAMING
