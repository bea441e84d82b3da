"""Why a topic stalls and since when: what fails for the longest, until it works."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from offloaderd.core.errors import (
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
from offloaderd.core.metrics.families import ERROR_CLASSES
from offloaderd.core.model import OffloadMethod, Position
from offloaderd.segment.failures import STALLED_TRIES, FailureTracker, error_class
from offloaderd.testing.clock import START_MS, FakeClock
from offloaderd.topic.chooser import Begin
from tests.unit.rigs.owned import Owned, offloaded_topic
from tests.unit.rigs.rig import TOPIC


def made() -> tuple[FailureTracker, FakeClock, list[str]]:
    """Troubles on a clock that stands still, and how often they changed."""
    clock, changes = FakeClock(), list[str]()
    return FailureTracker(TOPIC, clock, lambda: changes.append("changed")), clock, changes


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
    failure_tracker, clock, _ = made()
    for _ in range(STALLED_TRIES):
        assert failure_tracker.stalled is None
        failure_tracker.record(Transient("reset"), "part 3")
        failure_tracker.record(Transient("reset"), "part 4")
        failure_tracker.clear("part 4")
        await clock.advance(7)
    assert failure_tracker.stalled is not None
    assert failure_tracker.stalled.since_ms == START_MS
    assert failure_tracker.count == STALLED_TRIES
    failure_tracker.clear("part 3")
    assert failure_tracker.stalled is None
    assert failure_tracker.error is None
    assert failure_tracker.count == 0


def test_what_an_operator_must_act_on_stalls_at_once() -> None:
    """Missing rights do not pass by themselves; they are named before what may pass, though that began earlier."""
    failure_tracker, _, changes = made()
    failure_tracker.record(Transient("reset"), "part 1")
    assert failure_tracker.stalled is None
    failure_tracker.record(Denied("no"), "part 2")
    assert failure_tracker.stalled is not None
    assert type(failure_tracker.stalled.error) is Denied
    failure_tracker.clear("part 2")
    assert failure_tracker.stalled is None
    assert type(failure_tracker.error) is Transient
    assert len(changes) == 3


def test_a_failure_without_a_name_ends_with_any_success() -> None:
    """A failed segment, or a look at the source in passing, is over once anything works."""
    failure_tracker, _, _ = made()
    failure_tracker.record(OffloaderError("segment failed"))
    assert failure_tracker.stalled is not None
    failure_tracker.clear("part 1")
    assert failure_tracker.error is None


async def test_the_log_says_once_that_it_stalls_and_once_that_it_goes_on() -> None:
    """An event at the begin with reason and time, one at the end with how long it lasted, none between."""
    failure_tracker, clock, _ = made()
    with capture_logs() as events:
        for _ in range(3):
            failure_tracker.record(NoSpace("quota"), "part 1")
            failure_tracker.record(Transient("reset"), "part 2")
            await clock.advance(10)
        failure_tracker.clear("part 2")
        assert [event["event"] for event in events] == ["topic.stalled"]
        failure_tracker.clear("part 1")
        failure_tracker.clear("part 1")
    assert [event["event"] for event in events] == ["topic.stalled", "topic.recovered"]
    assert (events[0]["error_class"], events[0]["since_ms"]) == ("no_space", START_MS)
    assert events[1]["stalled_s"] == 30.0


async def test_an_attempt_says_how_often_its_segment_has_failed_since_the_last_commit() -> None:
    """A commit ends the row: what failed before it says nothing of the entries behind it."""
    owned = await Owned.claim(await offloaded_topic(10))
    attempts, begin = owned.offloader.attempts, Begin(Position(1, 0), OffloadMethod.STREAMING)

    async def said() -> tuple[int, str]:
        attempt = await attempts.assigned(begin, lambda: owned.offloader.policy)
        return attempt.tries, attempt.last_error

    for tries in (1, 2):
        attempts.failed("no such upload")
        assert await said() == (tries, "no such upload")
    attempts.committed()
    assert await said() == (0, "")
