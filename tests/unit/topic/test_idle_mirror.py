"""The mirror of a topic that is suspended: what its status and gauges say."""

from __future__ import annotations

from offloaderd.policy.records import TopicPolicy
from offloaderd.topic.status import Reporter
from tests.unit.rigs.rig import TOPIC, enabled, payloads, until, until_offloaded
from tests.unit.upkeep.test_mirror import rig_of


async def test_the_lag_of_a_mirror_grows_while_its_topic_is_suspended() -> None:
    """A segment that cannot be copied is tried again in an hour, and an alert is about its age."""
    rig = rig_of()
    rig.suspend_after_s = 0.1
    assert rig.ledgers is not None
    async with rig.engine() as engine:
        topic = await enabled(engine, TopicPolicy(enabled=True, mirror="eu/topics/"))
        last = await rig.ledgers.append(TOPIC, payloads(10))
        await topic.request_roll()
        await until_offloaded(topic, last)
        await until(lambda: engine.statuses()[0].asleep)
        await rig.clock.sleep(20.0)
        [status] = engine.statuses()
        assert status.asleep
        assert status.mirror is not None
        assert status.mirror.lag_seconds >= 20
        Reporter(engine.context, engine.statuses).report()
        shown = rig.metrics.registry.get_sample_value("offloaderd_mirror_lag_seconds", {"topic": str(TOPIC)})
        assert shown == status.mirror.lag_seconds
