"""Long indexes are taken apart in threads, whoever looks at them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from offloaderd.format import verify
from offloaderd.history.rewrite import BucketReader
from offloaderd.objects import whole
from offloaderd.segment.failures import FailureTracker
from tests.unit.rigs.owned import Owned, offloaded_topic
from tests.unit.rigs.rig import TOPIC
from tests.unit.upkeep.test_second_look import for_a_broker, verified

if TYPE_CHECKING:
    from offloaderd.metadata.committed import CommittedSegment

REAL_TIME = "threads"


async def indexes_checked(owned: Owned, segment: CommittedSegment) -> None:
    """By everybody who looks at one."""
    await for_a_broker(owned, segment)
    await verified(owned, segment)
    failure_tracker = FailureTracker(TOPIC, owned.rig.clock, lambda: None)
    reader = BucketReader(owned.context, TOPIC, failure_tracker, lambda: None)
    await reader.stored(await reader.volume(segment))


async def test_long_indexes_are_taken_apart_beside_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of 32 MiB takes seconds: whoever looks at one does that in a thread, as with manifests."""
    owned = await Owned.claim(await offloaded_topic(10, 10))
    segment, sound, threads = owned.offloader.map.segments[1], verify.check_index, list[int]()

    def check(*arguments: object, **named: object) -> None:
        threads.append(threading.get_ident())
        sound(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(whole, "APART_BYTES", 0)
    for module in ("upkeep.verify.segment", "upkeep.grants.copy_check", "history.rewrite"):
        monkeypatch.setattr(f"offloaderd.{module}.check_index", check)
    await indexes_checked(owned, segment)
    assert len(threads) == 3
    assert threading.get_ident() not in threads
