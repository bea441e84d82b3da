"""What a backfill's driver says of a segment is what is committed, whatever arrives late, and from whom."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.core.errors import Fenced, OffloaderError
from offloaderd.core.model import Position
from offloaderd.objects.port import pieces_of
from offloaderd.objects.stored_as import PLAIN, StoredAs
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.prefix_totals import Pasts
from offloaderd.testing.faults import Faults, FaultyStore
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.gc.collector import Collector
from offloaderd.upkeep.stored import Site
from tests.patience import PATIENCE_S
from tests.unit.rigs.rig import TOPIC
from tests.unit.spark.backfill_rig import LocalRunner, backfill, map_of, planned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offloaderd.format.manifest import Past
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.objects.port import Bytes, ObjectInfo, Pieces
    from offloaderd.spark.jobs.task import SegmentTask
    from tests.unit.rigs.rig import Rig

SITE = Site(cluster="test", bucket="b", prefix="seg/")


class Late(FaultyStore):
    """Keeps every PUT, to carry it out once more when all is over."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.store, Faults())
        self._sent: list[tuple[str, bytes, Mapping[str, str] | None]] = []

    async def put(
        self,
        key: str,
        data: Bytes | Pieces,
        *,
        metadata: Mapping[str, str] | None = None,
        if_etag: str | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> ObjectInfo:
        """Carry it out, and remember it."""
        self._sent.append((key, b"".join(pieces_of(data)), metadata))
        return await super().put(key, data, metadata=metadata, if_etag=if_etag, stored_as=stored_as)

    async def replay(self) -> None:
        """Let the first request for each key arrive last."""
        for key, data, metadata in reversed(self._sent):
            await super().put(key, data, metadata=metadata)


async def backfilled_over_a_loss(rig: Rig) -> None:
    """Offload the history, of which three ledgers vanish after the first segment was written."""
    ledgers = rig.ledgers
    assert ledgers is not None

    async def trim(task: SegmentTask, number: int) -> None:
        if number == 2:
            for ledger_id in (0, 1, 2):
                await ledgers.delete(TOPIC, ledger_id)

    async with asyncio.timeout(PATIENCE_S):
        await backfill(rig, LocalRunner(rig, trim), slots=1).run()
    (loss,) = (await map_of(rig)).losses
    assert (loss.after, loss.before) == (Position(1, 9), Position(3, 0))


async def names(rig: Rig) -> set[str]:
    """The keys of all that is stored."""
    return {info.key async for info in rig.store.list()}


async def manifests(rig: Rig) -> list[bytes]:
    """What is said of each segment that is committed."""
    return [await rig.store.get(one.keys.manifest) for one in (await map_of(rig)).segments]


async def test_late_requests_of_executors_change_nothing_of_what_is_committed() -> None:
    """Every PUT arrives once more, the oldest last: a rebuild knows the loss, and where each entry has its number."""
    rig = await planned()
    late = rig.objects = Late(rig)
    await backfilled_over_a_loss(rig)
    before = await manifests(rig)
    await late.replay()
    assert await manifests(rig) == before
    found = await rebuild.read_buckets(late, [SITE], lambda _: None)
    assert rebuild.make_plan(found).problems == ()


async def test_what_a_late_request_leaves_beside_a_segment_is_collected() -> None:
    """Drafts are deleted after the commit; one that comes later is nobody's, and the segment stays whole."""
    rig = await planned()
    late = rig.objects = Late(rig)
    await backfilled_over_a_loss(rig)
    before = await names(rig)
    assert not [name for name in before if name.endswith("-draft")]
    await late.replay()
    assert before < await names(rig)
    collector = Collector(late, rig.tree.connect(), [SITE], clock=rig.clock, metrics=rig.metrics)
    async for _ in collector.collect(grace_s=0.0, apply=True):
        pass
    assert await names(rig) == before


async def test_a_driver_that_was_deposed_before_its_commit_has_put_the_same_manifest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What lay before a segment is recorded before the manifest is put; the next driver does not find it out anew."""
    rig = await planned()
    before, store = Pasts.before, rig.tree.connect()

    async def die(self: AttemptLog, *args: Any, **named: Any) -> TopicMap:  # noqa: ANN401 - as it is called
        store.expire()
        raise Fenced("deposed")

    async def otherwise(self: Pasts, *args: Any) -> Past:  # noqa: ANN401 - as it is called
        return (await before(self, *args))._replace(entries=99)

    async with asyncio.timeout(PATIENCE_S):
        with monkeypatch.context() as patched:
            patched.setattr(AttemptLog, "commit", die)
            with pytest.raises(OffloaderError):
                await backfill(rig, store=store).run()
        first = {key: await rig.store.get(key) for key in await names(rig) if key.endswith("-manifest")}
        with monkeypatch.context() as patched:
            patched.setattr(Pasts, "before", otherwise)
            await backfill(rig, me="second").run()
    segment = (await map_of(rig)).segments[0]
    assert await rig.store.get(segment.keys.manifest) == first[segment.keys.manifest]
