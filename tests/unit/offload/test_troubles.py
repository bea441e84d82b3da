"""Why a topic stalls and since when: what fails for the longest, until it works."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from offloaderd.errors import (
    BucketMissing,
    Conflict,
    Denied,
    Expired,
    NoSpace,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    Throttled,
    Transient,
)
from offloaderd.metric_values import ERROR_CLASSES
from offloaderd.offload.troubles import STALLED_TRIES, Troubles, error_class
from offloaderd.testing.clock import START_MS, FakeClock
from tests.unit.offload.rig import TOPIC


def made() -> tuple[Troubles, FakeClock, list[str]]:
    """Troubles on a clock that stands still, and how often they changed."""
    clock, changes = FakeClock(), list[str]()
    return Troubles(TOPIC, clock, lambda: changes.append("changed")), clock, changes


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (Throttled(""), "throttled"),
        (Transient(""), "transient"),
        (OutcomeUnknown(""), "transient"),
        (Expired(""), "expired"),
        (Denied(""), "denied"),
        (NoSpace(""), "no_space"),
        (BucketMissing(""), "bucket_missing"),
        (NotFound(""), "not_found"),
        (Conflict(""), "other"),
    ],
)
def test_every_class_has_its_name(error: OffloaderError, name: str) -> None:
    """What an operator does about it decides the class; the names are those of the metrics."""
    assert error_class(error) == name
    assert name in ERROR_CLASSES


async def test_a_part_that_fails_stalls_the_topic_however_well_its_neighbours_fare() -> None:
    """Others that work do not end the trouble of one; its age is that of its first failure."""
    troubles, clock, _ = made()
    for _ in range(STALLED_TRIES):
        assert troubles.stalled is None
        troubles.met(Transient("reset"), "part 3")
        troubles.met(Transient("reset"), "part 4")
        troubles.over("part 4")
        await clock.advance(7)
    assert troubles.stalled is not None
    assert troubles.stalled.since_ms == START_MS
    assert troubles.count == STALLED_TRIES
    troubles.over("part 3")
    assert troubles.stalled is None
    assert troubles.error is None
    assert troubles.count == 0


def test_what_an_operator_must_act_on_stalls_at_once() -> None:
    """Missing rights do not pass by themselves; they are named before what may pass, though that began earlier."""
    troubles, _, changes = made()
    troubles.met(Transient("reset"), "part 1")
    assert troubles.stalled is None
    troubles.met(Denied("no"), "part 2")
    assert troubles.stalled is not None
    assert type(troubles.stalled.error) is Denied
    troubles.over("part 2")
    assert troubles.stalled is None
    assert type(troubles.error) is Transient
    assert len(changes) == 3


def test_trouble_without_a_name_ends_with_any_success() -> None:
    """A failed segment, or a look at the source in passing, is over once anything works."""
    troubles, _, _ = made()
    troubles.met(OffloaderError("segment failed"))
    assert troubles.stalled is not None
    troubles.over("part 1")
    assert troubles.error is None


async def test_the_log_says_once_that_it_stalls_and_once_that_it_goes_on() -> None:
    """An event at the begin with reason and time, one at the end with how long it lasted, none between."""
    troubles, clock, _ = made()
    with capture_logs() as events:
        for _ in range(3):
            troubles.met(NoSpace("quota"), "part 1")
            troubles.met(Transient("reset"), "part 2")
            await clock.advance(10)
        troubles.over("part 2")
        assert [event["event"] for event in events] == ["topic.stalled"]
        troubles.over("part 1")
        troubles.over("part 1")
    assert [event["event"] for event in events] == ["topic.stalled", "topic.recovered"]
    assert (events[0]["error_class"], events[0]["since_ms"]) == ("no_space", START_MS)
    assert events[1]["stalled_s"] == 30.0
