"""The gauges of all topics together, however many turns a pass over them takes."""

from __future__ import annotations

from offloaderd.core.aio import TURN_ITEMS
from offloaderd.core.model import Position, TopicName
from offloaderd.metadata.records.history import RangeState
from offloaderd.topic.status import HistoryStatus, Reporter, TopicStatus
from tests.unit.rigs.rig import Rig


async def test_sums_are_of_all_turns() -> None:
    """Those of the first topics and of the last ones, and what only some of them have."""
    rig, count = Rig(), 2 * TURN_ITEMS + 7
    history = HistoryStatus(
        boundary=Position(1, 0),
        worker="daemon",
        left_entries=0,
        left_bytes=0,
        live_waits=False,
        error="",
        ranges={RangeState.DONE: 2},
    )
    statuses = [
        TopicStatus(
            topic=TopicName.parse(f"topic-{number}"),
            state="offloading",
            epoch=number % 2,
            paused_ms=number % 2,
            asleep=number % 2 == 0,
            open_segment_bytes=3,
            open_segment_age_s=float(number if number < TURN_ITEMS else 1),
            history=history if number % 2 else None,
        )
        for number in range(count)
    ]
    async with rig.engine() as engine:
        await Reporter(engine.context, lambda: iter(statuses)).report()
        value = rig.metrics.registry.get_sample_value
        assert value("offloaderd_ownership_topics") == count // 2
        assert value("offloaderd_topics_paused") == count // 2
        assert value("offloaderd_topics_suspended") == count - count // 2
        assert value("offloaderd_pipeline_bytes", {"stage": "assembly"}) == 3 * count
        assert value("offloaderd_oldest_open_segment_seconds") == TURN_ITEMS - 1
        assert value("offloaderd_history_ranges", {"state": RangeState.DONE.value}) == 2 * (count // 2)
