"""What a patient reader reads is paid for, whichever way it asks."""

from __future__ import annotations

from offloaderd.core.limits import TokenBucket
from offloaderd.objects.retrying import RetryingReader
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.objects import MemoryStore


async def test_every_way_of_reading_is_paid_for() -> None:
    """Small objects, pieces within a budget and exact ranges count alike, at the rate and for who hears of bytes."""
    store, clock, last_answer = MemoryStore(FakeClock()), FakeClock(), list[int]()
    await store.put("key", bytes(1000), metadata={})
    throttle = TokenBucket(100, clock, burst_s=0)
    reader = RetryingReader(store, clock=clock, throttle=throttle, read=last_answer.append)
    await reader.table(len, "key")
    assert throttle.wait_s == 10
    await clock.advance(10)
    async with reader.piece("key", 0, 200):
        assert throttle.wait_s == 2
    await clock.advance(2)
    assert await reader.exactly("key", 5, 300) == bytes(300)
    assert throttle.wait_s == 3
    assert (last_answer, reader.read_bytes) == ([1000, 200, 300], 1500)
