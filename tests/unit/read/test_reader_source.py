"""Reading from a source that stumbles, ends early or lets its watch end; and what a view calls unfinished."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.core.errors import (
    Denied,
    Transient,
)
from offloaderd.core.model import START, HistoryOrder, Position, TopicName
from offloaderd.core.read_options import ReadPriority, Tier
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.read.stream import ChangeSignals
from tests.unit.read.build import (
    TOPIC,
    Piece,
    collect,
    flat,
    payloads,
    put_segment,
    run,
)
from tests.unit.read.test_reader import ALL, IDS, three_tiers

if TYPE_CHECKING:
    from offloaderd.core.entries import Entries


async def test_a_source_that_stumbles_now_and_then_is_not_given_up() -> None:
    """Only tries in a row count: a long read has many passing errors."""
    rig, shelf = await three_tiers()
    rig.map.segments = []
    batches: list[Entries] = []
    async with rig.reader, aclosing(rig.reader.read(TOPIC, batch_bytes=1)) as reading:
        async for batch, _ in reading:
            shelf.stumbles = 1
            batches.append(batch)
    assert flat(batches) == ALL
    assert len(rig.clock.pauses) > rig.reader.options.segments.retry.tries_max


async def test_a_source_is_given_up_after_the_tries_of_the_policy() -> None:
    """The pauses between them are one fewer."""
    rig, shelf = await three_tiers()
    tries = 0

    async def failing(*_: Any, **__: Any) -> Any:  # noqa: ANN401 - as the source has it
        nonlocal tries
        tries += 1
        raise Transient("away")
        yield

    shelf.read = failing  # type: ignore[method-assign]
    async with rig.reader:
        found = await collect(rig, last=Position(3, 9), priority=ReadPriority.BOOKKEEPER_FIRST)
    assert found == (run(3, 0, 9), [Tier.OBJECTS])
    assert tries == rig.reader.options.segments.retry.tries_max


async def test_a_source_that_ends_early_gives_way_to_the_bucket() -> None:
    """It is not asked for the same entries again and again."""
    rig, shelf = await three_tiers()
    read = shelf.read

    def short(topic: TopicName, ledger: int, first: int, last: int, *, batch_bytes: int) -> Any:  # noqa: ANN401
        assert not shelf.reads
        return read(topic, ledger, first, min(last, 1), batch_bytes=batch_bytes)

    shelf.read = short  # type: ignore[method-assign,assignment]
    async with rig.reader:
        found = await collect(rig, last=Position(3, 9), priority=ReadPriority.BOOKKEEPER_FIRST)
    assert found == (run(3, 0, 9), [Tier.SOURCE, Tier.OBJECTS])
    assert len(shelf.reads) == 1


async def test_history_that_is_offloaded_is_no_gap() -> None:
    """Only what is behind it, up to the boundary, may be missing; of an empty bucket that is all."""
    rig, _ = await three_tiers()
    live = await put_segment(rig.store, [Piece(5, 0, payloads(5, 0, 3))], segment_id=IDS[3])
    rig.map.segments = [rig.map.segments[0], live]
    rig.map.history = HistoryPlan(
        boundary=5, first=3, last=Position(3, 9), order=HistoryOrder.ALONGSIDE, worker=Worker.DAEMON,
        planned_ms=1, epoch=1, daemon_id="d", entries=10, payload_bytes=1,
    )  # fmt: skip
    async with rig.reader:
        assert (await rig.reader.view(TOPIC)).unfinished == (Position(3, 4), Position(5, 0))
        rig.map.segments = [live]
        assert (await rig.reader.view(TOPIC)).unfinished == (START, Position(5, 0))


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "fails"])
async def test_the_watch_of_a_source_begins_anew(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    """Whether it has ended or failed, also for want of rights: a follower would only hear of ticks from then on."""
    rig, shelf = await three_tiers()
    watches = 0

    async def watch(topic: TopicName) -> Any:  # noqa: ANN401 - as the source has it
        nonlocal watches
        watches += 1
        yield None
        if not ends:
            raise Denied("not now")

    monkeypatch.setattr(shelf, "watch", watch)
    async with rig.reader:
        signals = ChangeSignals(hot=rig.hot, source=shelf, clock=rig.clock, loader=rig.reader.segments.loader)
        with signals.following(TOPIC):
            await rig.clock.sleep(5000)
    assert watches > 2
