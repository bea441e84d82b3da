"""A ledger that only the tier has and that is not in its place: lost, or looked for in the wrong account."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Transient
from offloaderd.core.model import START, Position, RefusalKind
from offloaderd.metadata import identity, paths
from offloaderd.metadata.records import identity as identity_record
from offloaderd.metadata.records.identity import Acceptance
from offloaderd.objects import keys
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.stored import Site
from tests.unit.history.test_adoption import Brokers, committed, ids, shape, two_services
from tests.unit.rigs.rig import TOPIC, Rig, enabled, payloads, until, until_offloaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.metadata.records.identity import Refusal
    from offloaderd.objects.port import ObjectInfo


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """An engine's surroundings, with a source whose brokers offload by themselves, and short pauses between tries."""
    monkeypatch.setattr("offloaderd.history.adoption.RETRY_S", 0.1)
    made = Rig(policy=RollPolicy(segment_bytes_max=1_000_000, segment_age_max_s=0.05))
    made.ledgers = MemoryLedgers(clock=made.clock)
    made.offloads = Brokers(made, made.ledgers)
    return made


@pytest.fixture
def brokers(rig: Rig) -> Brokers:
    """The brokers of that source."""
    assert isinstance(rig.offloads, Brokers)
    return rig.offloads


async def refused(rig: Rig) -> list[str]:
    """Wait for a refusal of the place, and return the pieces of its evidence."""

    async def found() -> Sequence[Refusal]:
        record = (await identity.load(rig.tree.connect(), TOPIC)).record
        return [one for one in record.refusals if one.kind == RefusalKind.UNKNOWN_PLACE]

    while not (standing := await found()):
        await rig.clock.sleep(0.1)
    return standing[0].evidence.split("; ")


async def accept(rig: Rig) -> None:
    """Accept the refusal of the place, as `offloadctl identity accept` does."""
    store = rig.tree.connect()
    record, version = await identity.load(store, TOPIC)
    (standing,) = (one for one in record.refusals if one.kind == RefusalKind.UNKNOWN_PLACE)
    accepted = record.accepting(Acceptance(kind=standing.kind, evidence=standing.evidence, by="ann", at_ms=1))
    assert version is not None
    await store.replace(paths.identity(TOPIC), identity_record.encode(accepted), version)


async def test_objects_that_are_gone_from_their_place_are_a_loss(rig: Rig, brokers: Brokers) -> None:
    """Neither tier has the ledger, and the place has those before and after it: the loss is recorded at once."""
    contents = await brokers.write([5, 6, 7, 2])
    a, b, c, d = await ids(brokers)
    for number, ledger_id in enumerate((a, b, c)):
        await brokers.offload(ledger_id, contents[number], store=ledger_id != b)
    await brokers.trim(b)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, Position(d, 1))
        assert topic.identity.refusals == ()
    found = await committed(rig)
    (loss,) = found.losses
    assert (loss.after, loss.before, loss.entries) == (Position(a, 4), Position(c, 0), 6)
    assert shape(found) == [(a, a, True), (c, c, True), (d, d, False)]


@pytest.mark.parametrize("moved", [(0, 1, 2), (0, 1), (1, 2)])
async def test_absence_from_another_account_is_no_loss(rig: Rig, brokers: Brokers, moved: Sequence[int]) -> None:
    """Pulsar names no account: where the settings' one has not the ledgers on both sides, the topic says so and waits.

    Once the settings name the right one, the ledgers are adopted, and nothing of the refusal is left.
    """
    contents = await brokers.write([5, 6, 7, 2])
    *theirs, d = await ids(brokers)
    wrong, right = MemoryStore(rig.clock, part_bytes_min=1), MemoryStore(rig.clock, part_bytes_min=1)
    for number, ledger_id in enumerate(theirs):
        copy = await brokers.offload(ledger_id, contents[number], store=False)
        await copy.put(right)
        if number not in moved:
            await copy.put(wrong)
        await brokers.trim(ledger_id)
    rig.objects = wrong
    async with rig.engine() as engine:
        topic = await enabled(engine)
        pieces = await refused(rig)
        assert pieces == [f"ledger {theirs[number]} in bucket 'b' (driver memory)" for number in range(moved[0], 3)]
        await until(lambda: topic.failure_tracker.stalled is not None)
        stalled = topic.failure_tracker.stalled
        assert stalled is not None
        assert "correct account or endpoint" in str(stalled.error)
        assert str(theirs[moved[0]]) in str(stalled.error)
        await rig.clock.sleep(1.0)
        found = await committed(rig)
        assert found.losses == ()
        assert len(found.segments) == moved[0]
    rig.objects = right
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, Position(d, 1))
        await until(lambda: topic.identity.refusals == ())
    found = await committed(rig)
    assert found.losses == ()
    assert [one.foreign for one in found.segments] == [True, True, True, False]
    assert await identity.deletion_refused(rig.tree.connect(), TOPIC) == ""


async def test_ledgers_in_another_bucket_prove_nothing(
    rig: Rig, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker wrote one ledger to another service than those before and after it."""
    services = two_services(rig, monkeypatch)
    contents = await brokers.write([5, 6, 7, 2])
    *theirs, _ = await ids(brokers)
    for ledger_id, content in zip(theirs, contents, strict=False):
        copy = await brokers.offload(ledger_id, content, store=False)
        if ledger_id == theirs[1]:
            copy.driver, copy.bucket = "azureblob", "archive"
        else:
            copy.driver = "aws-s3"
            await copy.put(services.at("b"))
        await brokers.trim(ledger_id)
    async with rig.engine() as engine:
        await enabled(engine)
        (piece,) = await refused(rig)
        assert piece.startswith(f"ledger {theirs[1]} in bucket 'archive'")
        assert (await committed(rig)).losses == ()


async def test_a_ledger_that_bookkeeper_has_refuses_no_place(rig: Rig, brokers: Brokers) -> None:
    """It is offloaded from there; whether its objects are elsewhere does not matter."""
    contents = await brokers.write([5, 2])
    a, b = await ids(brokers)
    await brokers.offload(a, contents[0], store=False)
    async with rig.engine() as engine:
        await until_offloaded(await enabled(engine), Position(b, 1))
    assert not any(one.foreign for one in (await committed(rig)).segments)
    assert (await identity.load(rig.tree.connect(), TOPIC)).version is None


async def test_what_was_called_lost_by_mistake_comes_back_by_a_rebuild(
    rig: Rig, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator accepted the wrong account: a rebuild undoes it, once the settings name the right one."""
    rig.objects = services = two_services(rig, monkeypatch)
    contents = await brokers.write([5, 6, 7, 4, 2])
    a, b, c, d, e = await ids(brokers)
    right = MemoryStore(rig.clock, part_bytes_min=1)
    for number, ledger_id in ((0, a), (2, c), (3, d)):
        copy = await brokers.offload(ledger_id, contents[number], store=False)
        copy.driver, copy.bucket = "azureblob", "archive"
        copy.user_metadata = {keys.CLUSTER_KEY: "test"}
        await copy.put(right)
        await brokers.trim(ledger_id)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        assert len(await refused(rig)) == 3
        await accept(rig)
        await until_offloaded(topic, Position(e, 1))
    before = await committed(rig)
    assert [loss.entries for loss in before.losses] == [5, 11]
    services.add("archive", right)
    rig.tree = MemoryTree()
    sites = [Site(cluster="test", bucket="b", prefix="seg/")]
    sites.append(Site(cluster="test", bucket="archive", prefix="old/", broker_driver="azureblob"))
    found = await rebuild.read_buckets(rig.store, sites, lambda _: None)
    await rebuild.read_brokers(rig.store, sites, found)
    plan, store = rebuild.make_plan(found, topics=[TOPIC]), rig.tree.connect()
    await rebuild.write(store, plan, topics=[TOPIC], enable=True, now_ms=1, progress=lambda _: None)
    after = await committed(rig)
    assert after.losses == ()
    assert shape(after) == [(a, a, True), (b, b, False), (c, c, True), (d, d, True), (e, e, False)]
    assert sum(one.entries for one in after.segments) == 24
    async with rig.engine() as engine:
        await brokers.ledgers.append(TOPIC, payloads(3, seed=7))
        await until_offloaded(await enabled(engine), Position(e, 4))


async def test_a_place_is_accepted_for_the_ledgers_that_it_was_asked_for(rig: Rig, brokers: Brokers) -> None:
    """One acceptance is for all ledgers that only the tier had then; a later one in that place is asked for again."""
    contents = await brokers.write([5, 6, 7, 2])
    a, b, c, d = await ids(brokers)
    for number, ledger_id in enumerate((a, b)):
        await brokers.offload(ledger_id, contents[number], store=False)
        await brokers.trim(ledger_id)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        assert len(await refused(rig)) == 2
        await accept(rig)
        await until_offloaded(topic, Position(d, 1))
        assert topic.identity.refusals == ()
    found = await committed(rig)
    assert [(one.after, one.before, one.entries) for one in found.losses] == [(START, Position(c, 0), 11)]
    await brokers.ledgers.roll(TOPIC)
    await brokers.write([8, 1])
    *_, e, _ = await ids(brokers)
    await brokers.offload(e, payloads(8), store=False)
    await brokers.trim(e)
    async with rig.engine() as engine:
        await enabled(engine)
        assert await refused(rig) == [f"ledger {e} in bucket 'b' (driver memory)"]
        assert (await committed(rig)).losses == found.losses


@pytest.mark.parametrize("side", [0, 2])
async def test_a_place_that_does_not_answer_proves_nothing(
    rig: Rig, brokers: Brokers, monkeypatch: pytest.MonkeyPatch, side: int
) -> None:
    """The ledgers beside a missing one cannot be read now: nothing is concluded before they can."""
    contents = await brokers.write([5, 6, 7, 2])
    a, b, c, d = await ids(brokers)
    for number, ledger_id in enumerate((a, b, c)):
        await brokers.offload(ledger_id, contents[number], store=ledger_id != b)
    await brokers.trim(b)
    answers, head = [False], rig.store.head
    index = brokers.offloads[(a, b, c)[side]].keys.index

    async def hidden(key: str) -> ObjectInfo:
        if key == index and not answers[0] and topic.offloaded == Position(a, 4):
            raise Transient("no answer")
        return await head(key)

    async with rig.engine() as engine:
        topic = await enabled(engine)
        monkeypatch.setattr(rig.store, "head", hidden)
        await until(lambda: topic.failure_tracker.error is not None and topic.failure_tracker.count > 2)
        assert (await committed(rig)).losses == ()
        assert topic.identity.refusals == ()
        answers[0] = True
        await until_offloaded(topic, Position(d, 1))
    assert len((await committed(rig)).losses) == 1


async def test_rest_of_a_ledger_that_no_tier_has(rig: Rig, brokers: Brokers) -> None:
    """The broker's objects are gone as well: once an operator says so, the rest of it is lost, and not before."""
    await brokers.ledgers.append(TOPIC, payloads(10))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        (a,) = await ids(brokers)
        await until_offloaded(topic, Position(a, 9))
    await brokers.ledgers.append(TOPIC, payloads(5, seed=1))
    await brokers.ledgers.roll(TOPIC)
    await brokers.ledgers.append(TOPIC, payloads(3, seed=9))
    await brokers.offload(a, payloads(15), store=False)
    await brokers.trim(a)
    async with rig.engine() as engine:
        await enabled(engine)
        assert await refused(rig) == [f"ledger {a} in bucket 'b' (driver memory)"]
        assert (await committed(rig)).losses == ()
        await accept(rig)
        await until_offloaded(await enabled(engine), Position(a + 1, 2))
    (loss,) = (await committed(rig)).losses
    assert (loss.after, loss.before, loss.entries) == (Position(a, 9), Position(a + 1, 0), 5)
