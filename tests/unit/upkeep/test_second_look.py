"""One read alone may have been damaged on its way: what is called damaged was read twice, and only that."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import CorruptData, Unsound
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.objects.retrying import RetryingReader
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.read.segments import SegmentOptions, SegmentReader
from offloaderd.upkeep.explain import Explainer
from offloaderd.upkeep.flaws import Level
from offloaderd.upkeep.grants.broker_request import ClosedLedger, Copies, length_of
from offloaderd.upkeep.grants.copy_check import CopyChecker
from offloaderd.upkeep.stored import Site
from offloaderd.upkeep.verify.cluster import check_committed
from tests.unit.rigs.owned import Owned, offloaded_topic
from tests.unit.rigs.rig import TOPIC
from tests.unit.upkeep.test_damage import Maps
from tests.unit.upkeep.test_explain import Tiers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from offloaderd.metadata.committed import CommittedSegment

SITE = Site(cluster="test", bucket="b", prefix="seg/")


@dataclass
class Flips:
    """The first `left` reads of one object, its head apart, have their last bit flipped."""

    key: str
    left: int = 1
    reads: list[tuple[int, int | None]] = field(default_factory=list)

    def into(self, owned: Owned) -> Flips:
        """Lie before the bucket."""
        store = owned.rig.store
        get, get_pieces = store.get, store.get_pieces

        async def flipped(key: str, first: int = 0, length: int | None = None) -> bytes:
            return self._spoilt(key, first, length, [await get(key, first, length)])[0]

        async def pieces(key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
            return self._spoilt(key, first, sum(lengths), [*await get_pieces(key, first, lengths)])

        store.get, store.get_pieces = flipped, pieces  # type: ignore[method-assign]
        return self

    def _spoilt(self, key: str, first: int, length: int | None, found: list[bytes]) -> list[bytes]:
        if key == self.key:
            self.reads.append((first, length))
            if self.left:
                self.left -= 1
                found[-1] = found[-1][:-1] + bytes([found[-1][-1] ^ 1])
        return found


async def read_all(owned: Owned, segment: CommittedSegment) -> object:
    """As a reader does."""
    reader = SegmentReader(owned.rig.store, clock=owned.rig.clock, metrics=Metrics(), options=SegmentOptions())
    told: list[object] = []
    reader.damaged = lambda *found: told.append(found)
    count = 0
    async with reader, aclosing(reader.read(TOPIC, segment, segment.begin, segment.end)) as batches:
        async for batch in batches:
            count += len(batch.payloads)
    assert told == []
    return count == segment.entries


async def for_a_broker(owned: Owned, segment: CommittedSegment) -> object:
    """As EnsureLedger does."""
    stored, ledger_id = owned.offloader.map, segment.begin.ledger_id
    wanted = ClosedLedger(ledger_id, stored.ends[ledger_id].entries - 1, length_of(stored, ledger_id))
    return await Copies(owned.context).verified(stored, wanted, OffloadPolicies()) == 1


async def before_a_grant(owned: Owned, segment: CommittedSegment) -> object:
    """With every block."""
    return await CopyChecker(owned.context, readback=True).check(owned.offloader.map, segment, segment.begin.ledger_id)


async def explain(owned: Owned, segment: CommittedSegment) -> object:
    """Where an entry is."""
    reader = RetryingReader(owned.rig.store, clock=owned.rig.clock)
    explainer = Explainer(Maps(owned), Tiers().held, owned.rig.tree.connect(), reader, [SITE])
    found = await explainer.explain(TOPIC, segment.end)
    assert found.place is not None
    return found.place.flaw is None


async def verified(owned: Owned, segment: CommittedSegment) -> object:
    """By whoever verifies."""
    reader = RetryingReader(owned.rig.store, clock=owned.rig.clock)
    flaws, _ = await check_committed(reader, TOPIC, segment, Level.FULL, cluster=SITE.cluster, buckets=[SITE.bucket])
    return not flaws


LOOKS: list[Callable[[Owned, CommittedSegment], Awaitable[object]]] = [
    read_all,
    for_a_broker,
    before_a_grant,
    explain,
    verified,
]


@pytest.mark.parametrize("what", ["data", "index", "manifest"])
@pytest.mark.parametrize("look", LOOKS)
async def test_what_was_damaged_on_its_way_is_read_once_more(
    look: Callable[[Owned, CommittedSegment], Awaitable[object]], what: str
) -> None:
    """Nobody hears of it; what was damaged is read again, and nothing else of the object."""
    owned = await Owned.claim(await offloaded_topic(10, 10))
    segment = owned.offloader.map.segments[1]
    flips = Flips(getattr(segment.keys, what)).into(owned)
    assert await look(owned, segment)
    if flips.reads:
        assert flips.left == 0
        assert flips.reads[0] in flips.reads[1:]


@pytest.mark.parametrize("look", LOOKS[:3])
async def test_what_is_damaged_twice_is_damaged(
    look: Callable[[Owned, CommittedSegment], Awaitable[object]],
) -> None:
    """It is read no third time."""
    owned = await Owned.claim(await offloaded_topic(10, 10))
    segment = owned.offloader.map.segments[1]
    flips = Flips(segment.keys.manifest, left=99).into(owned)
    with pytest.raises((CorruptData, Unsound)):
        await look(owned, segment)
    assert len(flips.reads) == 2


async def test_of_a_long_segment_only_the_damaged_block_is_read_again() -> None:
    """By a reader: what was fetched with it in one request was sound."""
    owned = await Owned.claim(await offloaded_topic(60, ledger_entries=60))
    (segment,) = owned.offloader.map.segments
    flips = Flips(segment.keys.data).into(owned)
    assert await read_all(owned, segment)
    (_, fetched), (_, again) = flips.reads[:2]
    assert fetched is not None
    assert again is not None
    assert again < fetched
