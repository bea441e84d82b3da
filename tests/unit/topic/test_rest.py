"""What the duties of a topic say of when they have work again: by that a topic is suspended, and wakes."""

from __future__ import annotations

from math import inf

from offloaderd.core.model import TierRetention
from offloaderd.topic.offloader import Rest
from offloaderd.upkeep.grants.grants import Grants
from offloaderd.upkeep.retention import Retention
from offloaderd.upkeep.settings import GrantSettings, RetentionSettings
from tests.unit.rigs.owned import Owned, offloaded_topic


async def test_retention_says_when_something_may_be_due() -> None:
    """Never, unless an age will be over or a ledger has to be missing for a while."""
    owned = await Owned.claim(await offloaded_topic(10, 10))
    retention = Retention(owned.context, None, RetentionSettings(), owned.book())
    limits = await retention.run_once(owned.offloader, {})
    assert retention._patience_s(owned.offloader, limits, {}) == inf
    assert retention._patience_s(owned.offloader, limits, {1: 0.0}) == 0.0
    aged = limits._replace(kind=TierRetention.LIMITED, age_s=50.0)
    assert 40 < retention._patience_s(owned.offloader, aged, {}) <= 50
    assert owned.offloader.tailer is not None
    await owned.offloader.tailer.refresh()
    assert retention._patience_s(owned.offloader, aged, {}) == inf, "the source has it"


async def test_grants_say_when_something_may_be_due() -> None:
    """While a ledger is not granted, and when a grant begins to hold where we delete by it."""
    owned = await Owned.claim(await offloaded_topic(10, 10))
    options, book = GrantSettings(readback=False, interval_s=1.0), owned.book(deletion_lag_s=100.0)
    ours, theirs = (Grants(owned.context, one, options, book, daemon_id="one") for one in (owned.ledgers, None))
    assert owned.offloader.tailer is not None
    await owned.offloader.tailer.refresh()
    await owned.offloader.record.note_end()
    assert ours._patience_s(owned.offloader, {}) == 0.0
    known = await ours.run_once(owned.offloader, {})
    known = await ours.run_once(owned.offloader, known)
    assert known
    assert 90 < ours._patience_s(owned.offloader, known) <= 100
    assert theirs._patience_s(owned.offloader, known) == inf


def test_a_rest_ends_where_the_first_duty_is_due() -> None:
    """And there is none while a duty works."""
    rest = Rest()
    rest.working = 2
    with rest.until(5.0):
        assert rest.due_s is None
        with rest.until():
            assert rest.due_s == 5.0
        assert rest.due_s is None
    assert rest.working == 2
