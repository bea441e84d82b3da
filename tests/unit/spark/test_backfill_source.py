"""A job takes history from the source that was offloaded; set up with another it does, and records, nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from offloaderd.core.errors import IdentityRefused
from offloaderd.core.model import RefusalKind
from offloaderd.metadata import identity
from offloaderd.spark.backfill.plan import BackfillFailed
from offloaderd.spark.jobs.task import SegmentTask
from tests.unit.rigs.owned import Owned
from tests.unit.rigs.rig import TOPIC, memory_ledgers, payloads
from tests.unit.spark.backfill_rig import LocalRunner, backfill, map_of, planned, whole

if TYPE_CHECKING:
    from offloaderd.testing.memory.ledgers import MemoryLedgers
    from tests.unit.rigs.rig import Rig


async def _planned() -> Rig:
    """Return a topic whose history is a job's, and whose source is on record."""
    rig = await planned()
    rig.origin = rig.register = cast("MemoryLedgers", rig.ledgers)
    known = rig.known_source(rig.tree.connect())
    assert known is not None
    await known.confirm()
    return rig


async def _staging(rig: Rig, store_id: str = "staging") -> None:
    """Have another source in its place, with longer ledgers of the same numbers."""
    other = memory_ledgers(rig.clock, ledger_entries_max=60)
    await other.append(TOPIC, payloads(900, seed=99))
    other.store_id = store_id
    rig.ledgers = rig.origin = rig.register = other


async def _assert_untouched(rig: Rig, run: pytest.ExceptionInfo[Exception], words: str) -> None:
    assert words in str(run.value)
    found = await map_of(rig)
    assert found.unfinished is not None
    assert found.losses == ()
    assert found.segments[0].begin == found.unfinished.live_begin
    assert (await identity.load(rig.tree.connect(), TOPIC)).record.refusals == ()


async def test_a_job_that_reads_another_source_does_nothing() -> None:
    """Its settings are wrong, not the topic's source: that stays as it is, and the right job goes on."""
    rig = await _planned()
    ours = cast("MemoryLedgers", rig.ledgers)
    await _staging(rig)
    with pytest.raises(IdentityRefused) as run:
        await backfill(rig).run()
    await _assert_untouched(rig, run, "staging")
    rig.ledgers = rig.origin = rig.register = ours
    await backfill(rig).run()
    await whole(rig)


async def test_a_source_whose_ledgers_were_made_at_another_time_is_none_of_a_jobs() -> None:
    """It says the same id of itself, as one does that was copied."""
    rig = await _planned()
    await (await Owned.claim(rig)).offloader.source_check.ledgers(cast("MemoryLedgers", rig.ledgers))
    assert (await map_of(rig)).created
    await rig.clock.sleep(0.005)
    await _staging(rig, cast("MemoryLedgers", rig.ledgers).store_id or "")
    with pytest.raises(IdentityRefused) as run:
        await backfill(rig).run()
    await _assert_untouched(rig, run, RefusalKind.LEDGER_REPLACED)


async def test_an_executor_that_reads_another_source_writes_nothing() -> None:
    """Its machine may have other settings than the driver's."""
    rig = await _planned()

    async def before(_task: SegmentTask, number: int) -> None:
        if number == 1:
            await _staging(rig)

    with pytest.raises(BackfillFailed) as run:
        await backfill(rig, LocalRunner(rig, before)).run()
    await _assert_untouched(rig, run, "staging")
