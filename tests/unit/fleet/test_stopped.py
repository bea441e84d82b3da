"""A topic that was told to stop is released; it does not begin to sleep before."""

from __future__ import annotations

import pytest

from offloaderd.topic import idle as sleep
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, payloads, until, until_offloaded


@pytest.mark.parametrize("inspected", [True, False])
async def test_a_topic_that_was_told_to_stop_is_not_suspended(inspected: bool) -> None:
    """It would sleep with a stop that nobody carries out."""
    rig = Rig(suspend_after_s=0.1)
    rig.ledgers = memory_ledgers(rig.clock)
    async with rig.engine() as engine:
        last = await rig.ledgers.append(TOPIC, payloads(10))
        topic = await enabled(engine)
        await topic.request_roll()
        await until_offloaded(topic, last)
        supervisor, idle = engine._assignment.supervised[TOPIC], engine.idle_topics
        await until(lambda: idle._may_rest(topic, rig.clock.monotonic()))
        supervisor.untouched = sleep.state_of(supervisor, topic)
        supervisor.stop()
        if inspected:
            idle.taken_up(supervisor)
            idle._look_at_untouched()
        else:
            await idle.check()
        assert supervisor.idle_topic is None
        supervisor._stop.clear()
