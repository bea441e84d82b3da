"""Two releases on the same records: what the last wrote, what a later one adds, and what only that one may touch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Conflict, CorruptData, NewerRecord
from offloaderd.core.names.patterns import TopicPattern, of_topic
from offloaderd.fleet import ownership
from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata import paths
from offloaderd.metadata.records import codec
from offloaderd.metadata.records import ownership as records
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.policy import store as policies
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.policy.records import TopicPolicy, decode_policy, disabled, encode_policy, standing
from offloaderd.topic import requests as asked
from offloaderd.topic.requests import Wanted
from offloaderd.upkeep.gc.collector import Collector
from offloaderd.upkeep.stored import Site
from tests.golden.records import VALUES, lines
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, payloads, until, until_offloaded

if TYPE_CHECKING:
    from offloaderd.metadata.port import MetadataStore

NEWER = bytes.fromhex("a03802")
"""`format = 2` of our own records: field 900, a number. This release writes 1 at most."""
NEWER_CONTEXT = bytes.fromhex("903f02")
"""The same of Pulsar's OffloadContext: field 1010, behind the format of one in pieces."""
ADDED = bytes.fromhex("c23e056c61746572")
"""A text in field 1000, which no record of ours has."""
ADDED_CONTEXT = bytes.fromhex("8240056c61746572")
"""The same in field 1024."""
DERIVED = {"refused"}
"""What is not stored: why a selection is refused is found out anew."""
REWRITTEN = (
    "attempt",
    "attempt-of-a-ledger",
    "context",
    "context-in-pieces",
    "floor",
    "grant",
    "history-plan",
    "policy",
    "rollback-order",
)
"""Kinds of records that are read, changed in one place and written again."""


def test_there_is_a_line_for_each_value() -> None:
    """And a value for each line: what a release has written is never forgotten."""
    assert lines().keys() == VALUES.keys()


@pytest.mark.parametrize("name", VALUES)
def test_what_the_last_release_wrote_is_read_and_written_as_it_was(name: str) -> None:
    """Bytes and meaning are the same in both directions."""
    encode, decode, value = VALUES[name]
    assert decode(lines()[name], path="p") == value
    assert encode(value) == lines()[name]


@pytest.mark.parametrize("name", [name for name, (_, _, value) in VALUES.items() if is_dataclass(value)])
def test_no_field_of_a_record_is_left_out(name: str) -> None:
    """Each number, text and mark is written and read again, whatever else the record has; or it is refused."""
    encode, decode, value = VALUES[name]
    for field in fields(value):
        before = getattr(value, field.name)
        if not field.compare or type(before) not in {int, str, bool, float} or field.name in DERIVED:
            continue
        other = replace(value, **{field.name: not before if isinstance(before, bool) else before + type(before)(1)})
        with suppress(CorruptData, ValueError):
            assert decode(encode(other), path="p") == other, field.name


@pytest.mark.parametrize("name", REWRITTEN)
def test_what_a_later_release_adds_survives_a_rewrite(name: str) -> None:
    """Also where the value is compared with others, or written by a daemon that knows nothing of it."""
    encode, decode, value = VALUES[name]
    data = lines()[name] + (ADDED_CONTEXT if name.startswith("context") else ADDED)
    found = decode(data, path="p")
    assert found == value
    assert encode(found) == data


def test_what_a_later_release_adds_to_a_policy_survives_what_is_said_of_the_topic() -> None:
    """A policy that is set by name, and one that follows from a pattern."""
    found = decode_policy(lines()["policy"] + ADDED, path="p")
    assert encode_policy(standing(TopicPolicy(), found)).endswith(ADDED)
    assert encode_policy(disabled(found)).endswith(ADDED)


def test_what_a_later_release_adds_within_ranges_survives_too() -> None:
    """Each range is a message of its own."""
    encode, decode, _ = VALUES["history-ranges"]
    inner = lines()["history-ranges"][2:] + ADDED
    data = bytes([0x0A, len(inner)]) + inner
    assert encode(decode(data, path="p")) == data


@pytest.mark.parametrize("name", VALUES)
def test_a_record_that_only_a_later_release_may_touch_is_refused(name: str) -> None:
    """The error says which node, both formats, and what to do."""
    decode = VALUES[name][1]
    with pytest.raises(NewerRecord, match=r"/node was written by a newer offloaderd: format 2,") as caught:
        decode(lines()[name] + (NEWER_CONTEXT if name.startswith("context") else NEWER), path="/node")
    assert "upgrade this daemon" in caught.value.hint
    assert isinstance(caught.value, CorruptData)  # whoever leaves alone what is damaged leaves this alone as well


def test_no_record_of_this_release_is_refused_by_itself() -> None:
    """It writes format 0, which is nothing at all; 1 in contexts with pieces, and in epochs of compacted ledgers."""
    assert codec.FORMAT == 0
    codec.unless_newer(decode_policy, b"\xff\xff", "p")


async def test_a_release_before_compacted_ledgers_owns_none_of_their_topics() -> None:
    """It would take such a topic for a deleted one, and delete its copies: it cannot read the epoch."""
    rig, compaction = Rig(), replace(TOPIC, local=f"{TOPIC.local}/__compaction")
    store = rig.tree.connect()
    for topic in (TOPIC, compaction):
        for folder in paths.folders(topic):
            with suppress(Conflict):
                await store.create(folder, b"")
        node = records.DaemonNode(daemon_id="one", address="one:7650", version="0", started_ms=0)
        assert await ownership.claim(store, topic, node, await store.session(), rig.clock) is not None
    data = await content(store, paths.epoch(TOPIC))
    assert codec.parse(records_pb2.EpochRecord, data, "p").epoch == 1
    data = await content(store, paths.epoch(compaction))
    with pytest.raises(NewerRecord):
        codec.parse(records_pb2.EpochRecord, data, "p")
    raised = replace(records.decode_epoch(data, path="p"), epoch=2)
    assert records.encode_epoch(raised) == data.replace(b"\x08\x01", b"\x08\x02", 1)


async def made_newer(store: MetadataStore, path: str, mark: bytes = NEWER) -> bytes:
    """Have a record be a later release's; returns what it is now."""
    found = await store.get(path)
    await store.replace(path, found.value + mark, found.version)
    return found.value + mark


async def content(store: MetadataStore, path: str) -> bytes:
    """Read a node."""
    return (await store.get(path)).value


async def test_what_is_said_of_topics_replaces_no_record_of_a_later_release() -> None:
    """By name, by pattern, for a namespace, and a request by hand: each is refused, and the record is as it was."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    await rig.ledgers.append(TOPIC, payloads(5))
    store, pattern = rig.tree.connect(), TopicPattern.parse("public/*")
    namespace = (TOPIC.tenant, TOPIC.namespace)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await engine.select(pattern, TopicPolicy(enabled=True))
        await policies.put_level(store, rig.clock, namespace, OffloadPolicies(segment_age_max_s=9.0))
        request, _ = await topic.by_hand.ask(Wanted(), "me")
    changed = (
        paths.policy(TOPIC),
        paths.selection(pattern.text),
        paths.namespace_policy(*namespace),
        paths.asked(TOPIC),
    )
    kept = {path: await made_newer(store, path) for path in changed}
    async with rig.engine("two") as engine:
        with pytest.raises(NewerRecord):
            await engine.select(of_topic(TOPIC), TopicPolicy(enabled=True))
        with pytest.raises(NewerRecord):
            await engine.select(pattern, TopicPolicy(enabled=True))
        with pytest.raises(NewerRecord):
            await policies.put_level(store, rig.clock, namespace, OffloadPolicies())
        with pytest.raises(NewerRecord):
            await asked.record(store, TOPIC, await catalog.load(store, TOPIC), request)
    assert {path: await content(store, path) for path in kept} == kept


@pytest.mark.parametrize("what", ["attempt", "context"])
async def test_a_topic_with_a_record_of_a_later_release_stands_still_and_loses_nothing(what: str) -> None:
    """It is told as an error of the topic; no object, upload or record goes, whoever looks for garbage."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    store = rig.tree.connect()
    async with rig.engine() as engine:
        topic = await enabled(engine)
        last = await rig.ledgers.append(TOPIC, payloads(30))
        await topic.request_roll()
        await until_offloaded(topic, last)
    path = paths.ledger(TOPIC, (await catalog.load(store, TOPIC)).segments[0].begin.ledger_id)
    if what == "context":
        await made_newer(store, path, NEWER_CONTEXT)
    else:
        path = paths.attempt(TOPIC)
        await store.create(path, lines()["attempt"] + NEWER)
    before, objects = await content(store, path), {info.key async for info in rig.store.list()}
    async with rig.engine("two") as engine:
        await rig.ledgers.append(TOPIC, payloads(5, seed=3))
        await until(lambda: any(one.state == "stalled" for one in engine.statuses()))
        (status,) = engine.statuses()
        assert "written by a newer offloaderd" in status.stalled_reason
        collector = Collector(
            rig.store,
            store,
            [Site(cluster="test", bucket="b", prefix="seg/")],
            clock=rig.clock,
            metrics=rig.metrics,
        )
        with pytest.raises(NewerRecord):
            async for _ in collector.collect(grace_s=0, apply=True):
                pass
    assert await content(store, path) == before
    assert objects <= {info.key async for info in rig.store.list()}
