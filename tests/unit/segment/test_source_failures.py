"""What hinders a topic at its ledger source is told while it does, and no longer."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from offloaderd.core.aio import Event
from offloaderd.core.errors import Transient
from offloaderd.segment.failures import STALLED_TRIES
from tests.unit.rigs.owned import Owned, offloaded_topic
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, payloads, until, until_offloaded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pytest

    from offloaderd.core.model import EntryBatch


async def test_a_stall_at_the_source_is_over_with_the_first_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the last, nor with the first commit: catching up may take long."""
    rig = Rig(buffer_bytes=400_000)
    rig.ledgers = source = memory_ledgers(rig.clock, ledger_entries_max=10_000)
    last = await source.append(TOPIC, payloads(3000))
    read, begin, rest = source.read, Event(), Event()

    async def held(*arguments: Any, **named: Any) -> AsyncGenerator[EntryBatch, None]:  # noqa: ANN401 - as it came
        await begin.wait()
        async with aclosing(read(*arguments, **named)) as batches:
            async for batch in batches:
                if batch.first_entry_id > 0:
                    await rest.wait()
                yield batch

    monkeypatch.setattr(source, "read", held)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        for _ in range(STALLED_TRIES):
            topic.failure_tracker.record(Transient("the bookies did not answer"), "source")
        assert engine.statuses()[0].state == "stalled"
        begin.set()
        await until(lambda: topic.progress is not None and topic.progress.entries > 0)
        status = engine.statuses()[0]
        assert (status.state, status.stalled_reason) == ("offloading", "")
        assert not topic.map.segments
        rest.set()
        await topic.request_roll()
        await until_offloaded(topic, last)


async def test_what_failed_an_inspection_in_passing_is_over_with_its_answer() -> None:
    """A segment that is sealed looks at the source; nobody else may look for a while."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    await rig.ledgers.append(TOPIC, payloads(3))
    failures = [Transient("no answer")]

    async def ask() -> int:
        if failures:
            raise failures.pop()
        return 1

    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.tailer is not None and topic.tailer.refreshed_s is not None)
        assert await topic.failure_tracker.until_answered(ask, "source") == 1
        assert topic.failure_tracker.error is None


async def test_a_seal_holds_the_ledgers_as_the_source_has_them_then() -> None:
    """The source is asked again: a ledger may have ended since the tailer looked last."""
    rig = await offloaded_topic(5)
    owned = await Owned.claim(rig)
    assert rig.ledgers is not None
    await rig.ledgers.append(TOPIC, payloads(10))
    infos = await owned.offloader._facts.infos()
    assert (infos[0].entries, infos[0].closed) == (10, True)
