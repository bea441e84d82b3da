"""PIP-73, sentence by sentence, on twins of bucket and source: which tier is read, when the other one is, and why."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Denied, Transient
from offloaderd.core.model import Position
from offloaderd.core.read_options import ReadPriority, Tier
from offloaderd.objects import keys
from offloaderd.read import stream
from offloaderd.read.plan import Why
from tests.unit.read.build import PREFIX, TOPIC, ReadRig, collect, make_read_rig, run, sample
from tests.unit.read.shelf import Broken
from tests.unit.read.test_reader import IDS, three_tiers

if TYPE_CHECKING:
    from offloaderd.core.errors import OffloaderError
    from offloaderd.core.model import TopicName
    from offloaderd.policy.policies import Effective

BUCKET_FIRST, SOURCE_FIRST = ReadPriority.TIERED_STORAGE_FIRST, ReadPriority.BOOKKEEPER_FIRST
OFFLOADED = run(3, 0, 9) + run(5, 0, 3)
LAST = Position(5, 3)


def choices(rig: ReadRig) -> dict[tuple[str, str], int]:
    """Return how many entries came from where and why; bytes agree in being there or not."""
    found = {}
    for tier in Tier:
        for why in Why:
            labels = {"source": tier.value, "why": why.value}
            entries = sample(rig.metrics, "offloaderd_read_choice_entries_total", labels)
            size = sample(rig.metrics, "offloaderd_read_choice_bytes_total", labels)
            assert (entries > 0) == (size > 0)
            if entries:
                found[tier.value, why.value] = int(entries)
    return found


async def test_tiered_first_is_the_default() -> None:
    """Where nobody says anything, offloaded entries are read from the tier although BookKeeper has them."""
    rig, _ = await three_tiers()
    async with rig.reader:
        assert await collect(rig, last=LAST) == (OFFLOADED, [Tier.OBJECTS])
    assert choices(rig) == {("objects", "chosen"): 14}


async def test_bookkeeper_first_reads_bookkeeper_as_long_as_it_has_the_ledger() -> None:
    """Not one entry comes from the tier."""
    rig, _ = await three_tiers()
    async with rig.reader:
        assert await collect(rig, last=LAST, priority=SOURCE_FIRST) == (OFFLOADED, [Tier.SOURCE])
    assert choices(rig) == {("source", "chosen"): 14}


async def test_ledgers_deleted_from_bookkeeper_are_read_from_the_tier_without_asking_bookkeeper() -> None:
    """The list says that they are gone: no read of the source fails first."""
    rig, shelf = await three_tiers()
    shelf.ledgers_by_id.pop(3)
    async with rig.reader:
        found, tiers = await collect(rig, last=LAST, priority=SOURCE_FIRST)
    assert (found, tiers) == (OFFLOADED, [Tier.OBJECTS, Tier.SOURCE])
    assert choices(rig) == {("objects", "only_here"): 10, ("source", "chosen"): 4}
    for outcome in ("fallback", "error"):
        assert not sample(rig.metrics, "offloaderd_read_requests_total", {"source": "source", "outcome": outcome})


async def test_what_is_not_offloaded_is_read_from_bookkeeper() -> None:
    """With the tier first as well; the buffer is before both."""
    rig, _ = await three_tiers()
    async with rig.reader:
        await collect(rig, first=Position(5, 4))
    assert choices(rig) == {("source", "only_here"): 2, ("buffer", "chosen"): 2}


async def test_the_requests_word_wins_over_the_policys() -> None:
    """A reader may choose for itself, and the next one has the policy's again."""
    rig, _ = await three_tiers()
    rig.map.enabled, rig.map.priority = True, SOURCE_FIRST
    async with rig.reader:
        assert (await collect(rig, last=LAST, priority=BUCKET_FIRST))[1] == [Tier.OBJECTS]
        assert (await collect(rig, last=LAST))[1] == [Tier.SOURCE]
        rig.map.priority = BUCKET_FIRST
        assert (await collect(rig, last=LAST))[1] == [Tier.OBJECTS]


@pytest.mark.parametrize(
    ("failure", "why"), [("missing", Why.MISSING), ("corrupt", Why.CORRUPT), ("down", Why.UNAVAILABLE)]
)
async def test_the_tier_fails_and_bookkeeper_goes_on(failure: str, why: Why) -> None:
    """Deleted objects, a flipped bit, a store that does not answer: the same entries, and it is told why."""
    rig, shelf = await three_tiers()
    key = keys.SegmentKeys(PREFIX, IDS[0]).data
    if failure == "missing":
        await rig.store.delete([key])
    elif failure == "corrupt":
        stored = bytearray(await rig.store.get(key))
        stored[140] ^= 1
        await rig.store.put(key, bytes(stored))
    else:
        segments, rig = rig.map.segments, make_read_rig(source=shelf, objects=Broken(Transient("away")))  # type: ignore[arg-type]
        rig.map.segments = segments[:1]
    async with rig.reader:
        found, tiers = await collect(rig, last=Position(3, 4))
    assert (found, tiers) == (run(3, 0, 4), [Tier.SOURCE])
    assert choices(rig) == {("source", why.value): 5}


@pytest.mark.parametrize("failure", ["corrupt", "away", "refused"])
async def test_bookkeeper_fails_and_the_tier_goes_on(failure: str) -> None:
    """An entry that no bookie has right, bookies that do not answer, or refuse: the same entries from the bucket."""
    rig, shelf = await three_tiers()
    expected = Why.CORRUPT
    if failure == "corrupt":
        shelf.rotten = {(3, 0)}
    else:
        expected = Why.UNAVAILABLE
        error: OffloaderError = Transient("bookies are away") if failure == "away" else Denied("no")

        async def failing(*arguments: object, **options: object) -> object:
            raise error
            yield

        shelf.read = failing  # type: ignore[assignment,method-assign]
    async with rig.reader:
        found, tiers = await collect(rig, last=Position(3, 9), priority=SOURCE_FIRST)
    assert (found, tiers) == (run(3, 0, 9), [Tier.OBJECTS])
    assert choices(rig) == {("objects", expected.value): 10}


async def test_a_source_that_cannot_even_be_listed_is_unavailable() -> None:
    """What is wholly offloaded is read with BookKeeper and its metadata away."""
    rig, shelf = await three_tiers()
    shelf.stumbles = 10**6
    async with rig.reader:
        found, tiers = await collect(rig, last=LAST, priority=SOURCE_FIRST)
    assert (found, tiers) == (OFFLOADED, [Tier.OBJECTS])
    assert choices(rig) == {("objects", "fell_back_unavailable"): 14}


async def test_it_is_decided_for_every_read_anew() -> None:
    """A tier that failed one reader is asked by the next; within a read, the next segment is asked again."""
    rig, shelf = await three_tiers()
    key = keys.SegmentKeys(PREFIX, IDS[0]).data
    stored = await rig.store.get(key)
    await rig.store.delete([key])
    async with rig.reader:
        found, tiers = await collect(rig, last=LAST)
        assert (found, tiers) == (OFFLOADED, [Tier.SOURCE, Tier.OBJECTS])
        await rig.store.put(key, stored)
        assert (await collect(rig, last=LAST))[1] == [Tier.OBJECTS]
        shelf.rotten = {(3, 7)}
        found, tiers = await collect(rig, last=LAST, priority=SOURCE_FIRST)
        assert found == OFFLOADED
        assert tiers == [Tier.SOURCE, Tier.OBJECTS, Tier.SOURCE]
        shelf.rotten = set()
        assert (await collect(rig, last=LAST, priority=SOURCE_FIRST))[1] == [Tier.SOURCE]


async def test_a_policy_reaches_reads_of_a_topic_that_nobody_works_on() -> None:
    """The reader asks what holds for the topic by its name, whoever owns it."""
    rig, _ = await three_tiers()
    rig.map.enabled, rig.map.priority = True, SOURCE_FIRST
    assert await rig.reader.priority(TOPIC) is SOURCE_FIRST


async def test_a_read_that_goes_on_for_long_heeds_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its next run of entries on, and not when the request itself says the priority; not for every run at once."""
    for pause_s, asked, tiers in (
        (0.0, None, [Tier.OBJECTS, Tier.SOURCE]),
        (0.0, BUCKET_FIRST, [Tier.OBJECTS]),
        (60.0, None, [Tier.OBJECTS]),
    ):
        monkeypatch.setattr(stream, "POLICY_S", pause_s)
        rig, _ = await three_tiers()
        rig.map.enabled = True
        found: list[Tier] = []
        async with rig.reader, aclosing(rig.reader.read(TOPIC, last=LAST, priority=asked)) as reading:
            async for _, tier in reading:
                found += [tier] if tier not in found else []
                rig.map.priority = SOURCE_FIRST
        assert found == tiers


async def test_a_long_read_looks_at_the_policy_once_in_a_while() -> None:
    """However long it has lasted, and however many steps it takes: each would be a request to the metadata store."""
    rig, _ = await three_tiers()
    rig.map.enabled = True
    known, asked = rig.map.of, 0

    async def counted(topic: TopicName) -> Effective:
        nonlocal asked
        asked += 1
        return await known(topic)

    rig.map.of = counted  # type: ignore[method-assign]
    async with rig.reader, aclosing(rig.reader.read(TOPIC, last=LAST)) as reading:
        async for _ in reading:
            if asked == 1:
                await rig.clock.sleep(1000 * stream.POLICY_S)  # of which that clock sleeps a thousandth
    assert asked == 2


async def test_a_policy_that_cannot_be_read_any_more_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read goes on under what it knew."""
    monkeypatch.setattr(stream, "POLICY_S", 0.0)
    rig, _ = await three_tiers()
    rig.map.enabled = True
    known = rig.map.of
    answers = iter([known])

    async def once(topic: TopicName) -> Effective:
        return await next(answers, _away)(topic)

    rig.map.of = once  # type: ignore[method-assign]
    async with rig.reader:
        assert await collect(rig, last=LAST) == (OFFLOADED, [Tier.OBJECTS])


async def _away(topic: TopicName) -> Effective:
    raise Transient("ZooKeeper is away")
