"""After a change of the bucket in the settings, the daemon says what lies in the old one: of every topic, also an idle
one, from the map that it has at hand.
"""

from __future__ import annotations

from dataclasses import replace

from structlog.testing import capture_logs

from offloaderd.daemon.status_page.board import failing, failure_of
from offloaderd.metadata.topic_map.unnamed import WHAT_TO_DO
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, offloader_of, payloads, until, until_offloaded


def counted(rig: Rig) -> dict[str, float | None]:
    """Return the gauge of segments by copy; None: no series."""
    name, registry = "offloaderd_unnamed_place_segments", rig.metrics.registry
    return {
        copy: registry.get_sample_value(name, {"topic": str(TOPIC), "copy": copy})
        for copy in ("only", "first", "mirror")
    }


async def moved(rig: Rig) -> None:
    """Offload a segment, and change the bucket in the settings."""
    rig.ledgers = memory_ledgers(rig.clock)
    async with rig.engine() as engine:
        last = await rig.ledgers.append(TOPIC, payloads(10))
        topic = await enabled(engine)
        await topic.request_roll()
        await until_offloaded(topic, last)
        assert (engine.statuses()[0].unnamed, engine.alarms()) == ((), [])
        assert set(counted(rig).values()) == {None}
    rig.places = (("new", "seg/"),)


async def test_a_suspended_topic_is_counted_and_stays_suspended() -> None:
    """It was loaded once, at the start of the daemon; the alarm, the gauge and the log name place and topic."""
    rig = Rig(suspend_after_s=0.1)
    await moved(rig)
    with capture_logs() as logs:
        async with rig.engine("two") as engine:
            await until(lambda: any(one.asleep for one in engine.statuses()))
            await until(lambda: counted(rig)["only"] == 1.0)
            (alarm,) = engine.alarms()
            assert alarm.startswith(f"the settings do not name the place b/seg/, where parts of 1 topic ({TOPIC}) lie")
            assert alarm.endswith(WHAT_TO_DO)
            assert "1 segment has no copy elsewhere" in alarm
            (now,) = engine.statuses()
            assert now.asleep
            assert failing(now)
            assert failure_of(now).startswith("the settings do not name b/seg/")
            assert not failing(replace(now, unnamed=()))
            assert set(engine.unnamed) == {TOPIC}
            assert [str(one) for one in engine.unnamed_places(await engine.present_map(TOPIC))] == ["b/seg/"]
    told = [one for one in logs if one["event"] == "place.not_named"]
    assert [(one["place"], one["topic"], one["log_level"]) for one in told] == [("b/seg/", str(TOPIC), "error")]


async def test_what_is_stored_in_the_new_place_does_not_count_and_nothing_is_left_of_a_topic_that_goes() -> None:
    """The old segment counts as before."""
    rig = Rig()
    await moved(rig)
    assert rig.ledgers is not None
    async with rig.engine("two") as engine:
        topic = await offloader_of(engine)
        last = await rig.ledgers.append(TOPIC, payloads(10, seed=1))
        await topic.request_roll()
        await until_offloaded(topic, last)
        await until(lambda: counted(rig) == {"only": 1.0, "first": 0.0, "mirror": 0.0})
        assert [one.bucket for one in topic.map.segments] == ["b", "new"]
        assert [one.segments for one in engine.statuses()[0].unnamed] == [1]
    assert (set(counted(rig).values()), engine.alarms()) == ({None}, [])


async def test_a_place_that_is_named_again_is_told_no_more() -> None:
    """At the next start nothing is left of it."""
    rig = Rig()
    await moved(rig)
    rig.places = (("new", "seg/"), ("b", "seg/"))
    async with rig.engine("two") as engine:
        await offloader_of(engine)
        assert (engine.statuses()[0].unnamed, engine.alarms()) == ((), [])
