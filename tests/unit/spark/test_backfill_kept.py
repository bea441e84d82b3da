"""What is whole in the bucket is committed, though its source was trimmed or its record went back meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.core.errors import IdentityRefused
from offloaderd.core.model import OffloadMethod, Position, RefusalKind
from offloaderd.metadata import identity, paths
from offloaderd.spark.backfill.plan import BackfillFailed
from offloaderd.spark.backfill.transfer import hand_back
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.stored import Site
from tests.patience import PATIENCE_S
from tests.unit.rigs.rig import LAYOUT, TOPIC, beside, payloads, until
from tests.unit.spark.backfill_rig import LocalRunner, backfill, map_of, planned
from tests.unit.spark.test_backfill_whole import stores_of

if TYPE_CHECKING:
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.objects.port import Bytes, ObjectInfo, Pieces
    from offloaderd.spark.jobs.task import SegmentTask
    from offloaderd.testing.memory.metadata import MemoryTree
    from offloaderd.topic.outage import TopicContext
    from tests.unit.rigs.rig import Rig

SITE = Site(cluster="test", bucket="b", prefix="seg/")


async def trim(rig: Rig, *ledger_ids: int) -> None:
    """Let the source delete ledgers."""
    assert rig.ledgers is not None
    for ledger_id in ledger_ids:
        await rig.ledgers.delete(TOPIC, ledger_id)


async def broken_off(rig: Rig, *missing: Position) -> None:
    """Have everything written but the segments that begin at `missing`, and the driver die before its first commit."""
    runner, store = LocalRunner(rig), rig.tree.connect()

    async def hang(task: SegmentTask, number: int) -> None:
        if task.begin in missing:
            await asyncio.Event().wait()

    runner.before = hang
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(backfill(rig, runner, store=store, slots=5).run())
        await until(lambda: len(runner.ran) == 5 and runner.at_once == len(missing))
        store.expire()
        running.cancel()


async def run_again(rig: Rig) -> None:
    """Have another driver carry the backfill to its end."""
    async with asyncio.timeout(PATIENCE_S):
        await backfill(rig, LocalRunner(rig), me="second").run()


@pytest.mark.parametrize(("trimmed", "lost"), [((0,), 30), ((0, 1), 40), ((0, 1, 2), 40), ((0, 1, 2, 3, 4, 5), 40)])
async def test_a_segment_that_waits_for_its_turn_is_no_loss_when_its_source_is_trimmed(
    trimmed: tuple[int, ...], lost: int
) -> None:
    """All that an executor had stored before the ledgers went is committed; only what nobody had is lost."""
    rig = await planned()
    await broken_off(rig, Position(0, 0))
    await trim(rig, *trimmed)
    await run_again(rig)
    found = await map_of(rig)
    assert found.unfinished is None
    begin = found.segments[0].begin
    (loss,) = found.losses
    assert loss.before == begin
    assert loss.certain
    assert 30 * begin.ledger_id + begin.entry_id == lost
    assert [one for _, one in await rig.committed()] == payloads(200)[lost:]
    assert rebuild.make_plan(await rebuild.read_buckets(rig.store, [SITE], lambda _: None)).problems == ()


async def test_a_gap_in_the_middle_is_lost_and_what_was_stored_around_it_stays() -> None:
    """Segments before and behind the one that is missing are committed, though the source has none of their ledgers."""
    rig = await planned()
    await broken_off(rig, Position(1, 10))
    await trim(rig, 0, 1, 2, 3)
    await run_again(rig)
    found = await map_of(rig)
    (loss,) = found.losses
    assert (loss.after, loss.before) == (Position(1, 9), Position(2, 20))
    assert [one for _, one in await rig.committed()] == [*payloads(200)[:40], *payloads(200)[80:]]


async def test_what_was_stored_behind_a_loss_is_committed_before_history_is_handed_back() -> None:
    """The daemon could not write it anew: its source has none of it any more."""
    rig = await planned()
    await broken_off(rig, Position(0, 0))
    await trim(rig, 0, 1, 2, 3, 4, 5)
    found = await hand_back(stores_of(rig), TOPIC)
    assert (found.committed, found.discarded) == (4, 1)
    (loss,) = (await map_of(rig)).losses
    assert loss.before == Position(1, 10)
    assert [one for _, one in await rig.committed()] == payloads(200)[40:]


async def test_what_is_nowhere_else_is_not_given_back_before_what_precedes_it_is_written() -> None:
    """The daemon could not write it anew. It stays the job's, whose next run commits it; then nothing is lost."""
    rig = await planned()
    await broken_off(rig, Position(0, 0))
    await trim(rig, 2)
    with pytest.raises(BackfillFailed, match=r"whole in the bucket, and .* of ledger 2 .*run the backfill again"):
        await hand_back(stores_of(rig), TOPIC)
    assert await rig.tree.connect().children(paths.trash(TOPIC)) == []
    await run_again(rig)
    found = await map_of(rig)
    assert (found.unfinished, found.losses) == (None, ())
    assert [one for _, one in await rig.committed()] == payloads(200)


@pytest.mark.parametrize("trimmed", [(2,), (0, 1, 2)], ids=["in the middle", "from the front"])
async def test_what_is_stored_in_part_and_nowhere_else_is_not_given_back_either(
    trimmed: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All parts of a segment were on record when its executor died: the job's next run goes on with them."""
    rig, stuck = await planned(), list[str]()

    async def hang(key: str, *_: object) -> ObjectInfo:
        stuck.append(key)
        return await asyncio.Event().wait()  # type: ignore[return-value]

    store = rig.tree.connect()
    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "complete_upload", hang)
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            running = group.create_task(backfill(rig, LocalRunner(rig), store=store, slots=5).run())
            await until(lambda: len(stuck) == 5)
            store.expire()
            running.cancel()
    await trim(rig, *trimmed)
    with pytest.raises(BackfillFailed, match=r"in part in the bucket, and .* of ledger [02] .*run the backfill again"):
        await hand_back(stores_of(rig), TOPIC)
    await run_again(rig)
    assert (await map_of(rig)).losses == ()
    assert [one for _, one in await rig.committed()] == payloads(200)


async def restored(rig: Rig) -> TopicMap:
    """Offload history, and go back to metadata from when all of its segments were only begun; returns what was lost."""
    backups: list[MemoryTree] = []

    async def back_up(task: SegmentTask, number: int) -> None:
        if number == 5:
            backups.append(rig.tree.backup())

    async with asyncio.timeout(PATIENCE_S):
        await backfill(rig, LocalRunner(rig, back_up), slots=5).run()
    found = await map_of(rig)
    rig.tree = backups[0]
    assert len(await rig.tree.connect().children(paths.history_attempts(TOPIC))) == 5
    return found


async def test_segments_that_were_committed_after_a_backup_are_committed_again() -> None:
    """Their attempts are open in the backup, their objects finished, their source trimmed: nothing is lost."""
    rig = await planned()
    before = await restored(rig)
    keys = sorted([info.key async for info in rig.store.list()])
    await trim(rig, 0, 1, 2, 3, 4, 5)
    await run_again(rig)
    after = await map_of(rig)
    assert after.losses == ()
    assert [one.segment_id for one in after.segments] == [one.segment_id for one in before.segments]
    assert sorted([info.key async for info in rig.store.list()]) == keys
    assert [one for _, one in await rig.committed()] == payloads(200)


async def test_what_cannot_be_verified_stops_the_run_and_stays() -> None:
    """Neither committed nor given up: the objects of a segment that was finished once are kept, with the reason."""
    rig = await planned()
    key = (await restored(rig)).segments[0].keys.data
    stored = bytearray(await rig.store.get(key))
    stored[len(stored) // 2] ^= 1
    await rig.store.put(key, bytes(stored))
    with pytest.raises(IdentityRefused):
        await run_again(rig)
    record, _ = await identity.load(rig.tree.connect(), TOPIC)
    assert [one.kind for one in record.refusals] == [RefusalKind.METADATA_WENT_BACK]
    assert await rig.store.get(key) == bytes(stored)
    assert await rig.tree.connect().children(paths.trash(TOPIC)) == []
    assert (await map_of(rig)).losses == ()


@pytest.mark.parametrize("method", [OffloadMethod.STREAMING, OffloadMethod.LEDGER_BASED])
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
async def test_executors_that_died_around_the_request_for_an_object_of_one_part_lose_nothing(
    stored: bool, method: OffloadMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they have put needs no entries: the job's next run proves it. What they have not put is put then."""
    rig, stuck = await planned(), list[str]()
    put = rig.store.put
    rig.layout = LAYOUT
    made = rig.context

    def context(*given: Any, **named: Any) -> TopicContext:  # noqa: ANN401 - those of the rig
        """Have whole ledgers fit one part too."""
        found = made(*given, **named)
        assert found.ledgers is not None
        return replace(found, ledgers=replace(found.ledgers, part_bytes=1 << 20))

    rig.context = context  # type: ignore[method-assign]

    async def hang(key: str, data: Bytes | Pieces, **options: Any) -> ObjectInfo:  # noqa: ANN401 - those of put
        if options.get("if_etag") != "" or beside(key):
            return await put(key, data, **options)
        if stored:
            await put(key, data, **options)
        stuck.append(key)
        return await asyncio.Event().wait()  # type: ignore[return-value]

    store = rig.tree.connect()
    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "put", hang)
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            running = group.create_task(backfill(rig, LocalRunner(rig), store=store, slots=3, method=method).run())
            await until(lambda: len(stuck) == 3)
            store.expire()
            running.cancel()
    if stored:
        await trim(rig, 2)
    async with asyncio.timeout(PATIENCE_S):
        await backfill(rig, LocalRunner(rig), method=method).run()
    found = await map_of(rig)
    assert found.losses == ()
    assert set(stuck) <= {one.keys.data for one in found.segments}
    assert [one for _, one in await rig.committed()] == payloads(200)
    assert await rig.leftovers() == []
