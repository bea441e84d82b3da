"""How old the oldest entry is that is not offloaded: by what is stored, for every owner, from its first look on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Transient
from offloaderd.core.model import LedgerInfo, OffloadMethod, Position
from offloaderd.format.pulsar import broker_entry
from offloaderd.policy.records import TopicPolicy
from offloaderd.topic.lag import first_after
from offloaderd.topic.status import Reporter
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, payloads, until, until_offloaded
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from offloaderd.core.model import TopicName
    from offloaderd.topic.offloader import TopicOffloader


class HourAgo(LoopClock):
    """The clock of a store whose ledgers were made an hour ago."""

    def wall_ms(self) -> int:
        """Return the time of an hour ago."""
        return super().wall_ms() - 3_600_000


HELD = TopicPolicy(method=OffloadMethod.NONE)


def stamped(rig: Rig, age_s: float, count: int = 5) -> list[bytes]:
    """Make entries as a broker stores them that were written so long ago."""
    head = broker_entry.encode_head(broker_timestamp=rig.clock.wall_ms() - round(age_s * 1000), index=0)
    return [head + payload for payload in payloads(count)]


async def looked(topic: TopicOffloader) -> TopicOffloader:
    """Wait until the source was looked at and what there is to read there was read."""
    tailer = topic.tailer
    assert tailer is not None
    await until(lambda: tailer.refreshed_s is not None and topic.oldest.undated is None)
    return topic


async def test_a_new_owner_knows_how_old_the_oldest_entry_is() -> None:
    """Not since when it has seen it: a daemon that restarts now and then would never say that retention is near."""
    rig = Rig()
    rig.ledgers = memory_ledgers(HourAgo())
    await rig.ledgers.append(TOPIC, stamped(rig, 160.0))
    for name in ("one", "two"):
        async with rig.engine(name) as engine:
            topic = await looked(await enabled(engine, HELD))
            status = topic.status()
            assert status.lag_entries == 5
            assert status.lag_seconds is not None
            assert 160.0 <= status.lag_seconds < 260.0


async def test_an_entry_is_no_older_than_its_ledger() -> None:
    """Whatever the clock of who wrote it says: one that is years behind is no reason to wake anybody."""
    rig = Rig()
    rig.ledgers = memory_ledgers(HourAgo())
    await rig.ledgers.append(TOPIC, stamped(rig, 1e9))
    async with rig.engine() as engine:
        status = (await looked(await enabled(engine, HELD))).status()
        assert status.lag_seconds is not None
        assert 3600.0 <= status.lag_seconds < 3700.0


async def test_what_is_in_the_open_segment_counts_until_it_is_committed() -> None:
    """Its entries may have left memory; what follows a commit has a time of its own."""
    rig = Rig()
    rig.ledgers = memory_ledgers(HourAgo())
    await rig.ledgers.append(TOPIC, stamped(rig, 500.0))
    async with rig.engine() as engine:
        topic = await looked(await enabled(engine))
        await until(lambda: topic.progress is not None and topic.progress.entries == 5)
        age_s = topic.status().lag_seconds
        assert age_s is not None
        assert age_s >= 500.0
        await until_offloaded(topic, await topic.request_roll() or Position(0, 0))
        assert topic.status().lag_seconds == 0.0
        await rig.ledgers.append(TOPIC, stamped(rig, 20.0))
        await until(lambda: topic.status().lag_entries == 5)
        age_s = (await looked(topic)).status().lag_seconds
        assert age_s is not None
        assert 20.0 <= age_s < 120.0


async def test_an_entry_without_a_time_is_as_old_as_its_ledger_unless_it_came_under_a_watch() -> None:
    """No broker wrote it: it may be as old as that, and is told to be late too early rather than too late."""
    rig = Rig()
    rig.ledgers = memory_ledgers(HourAgo())
    await rig.ledgers.append(TOPIC, payloads(3))
    async with rig.engine() as engine:
        topic = await looked(await enabled(engine))
        age_s = topic.status().lag_seconds
        assert age_s is not None
        assert age_s >= 3600.0
        await until_offloaded(topic, await topic.request_roll() or Position(0, 0))
        await rig.ledgers.append(TOPIC, payloads(3))
        await until(lambda: topic.status().lag_entries == 3)
        age_s = (await looked(topic)).status().lag_seconds
        assert age_s is not None
        assert 0.0 <= age_s < 100.0


async def test_an_entry_without_a_time_in_a_ledger_without_one_is_of_unknown_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing that is stored says when it came: that is not 0."""
    rig = Rig()
    rig.ledgers = source = memory_ledgers(rig.clock)
    await source.append(TOPIC, payloads(3))
    listed = source.ledgers

    async def undated(topic: TopicName) -> list[LedgerInfo]:
        return [replace(info, created_ms=None) for info in await listed(topic)]

    monkeypatch.setattr(source, "ledgers", undated)
    async with rig.engine() as engine:
        status = (await looked(await enabled(engine, HELD))).status()
        assert (status.lag_entries, status.lag_seconds) == (3, None)


async def test_a_lag_that_nobody_has_looked_for_is_unknown_and_has_no_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before the source's first answer, nor once it fails while nothing is known to lag."""
    rig = Rig()
    rig.ledgers = ledgers = memory_ledgers(HourAgo())

    async def away(*_: object) -> list[LedgerInfo]:
        raise Transient("the source is away")

    def series(name: str) -> float | None:
        return rig.metrics.registry.get_sample_value(name, {"topic": str(TOPIC)})

    async with rig.engine() as engine:
        with monkeypatch.context() as patch:
            patch.setattr(ledgers, "ledgers", away)
            topic = await enabled(engine, HELD)
            status = topic.status()
            assert (status.lag_entries, status.lag_bytes, status.lag_seconds) == (None, None, None)
            await Reporter(engine.context, engine.statuses).report()
            assert (series("offloaderd_lag_seconds"), series("offloaderd_lag_unknown")) == (None, 1)
        await looked(topic)
        await until(lambda: topic.status().lag_entries == 0)
        await Reporter(engine.context, engine.statuses).report()
        assert (series("offloaderd_lag_seconds"), series("offloaderd_lag_unknown")) == (0, 0)
        monkeypatch.setattr(ledgers, "ledgers", away)
        assert topic.tailer is not None
        topic.tailer.nudge()
        await until(lambda: topic.status().lag_entries is None)
        await Reporter(engine.context, engine.statuses).report()
        assert (series("offloaderd_lag_seconds"), series("offloaderd_lag_unknown")) == (None, 1)


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (None, (1, 0)),
        (Position(1, 0), (1, 1)),
        (Position(1, 4), (3, 0)),
        (Position(2, 9), (3, 0)),
        (Position(3, 1), None),
        (Position(0, 7), (1, 0)),
    ],
)
def test_the_first_entry_behind_a_position_is_found_over_empty_ledgers(
    after: Position | None, found: tuple[int, int] | None
) -> None:
    """Ledgers may be empty, gone, or all offloaded."""
    ledgers = {
        number: LedgerInfo(ledger_id=number, closed=number < 3, entries=entries, size_bytes=0)
        for number, entries in ((1, 5), (2, 0), (3, 2))
    }
    assert first_after(ledgers, after) == found
