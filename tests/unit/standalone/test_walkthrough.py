"""The walkthrough against a daemon that a test can make lie: it must notice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import NotFound
from offloaderd.protocol.v1 import admin_pb2, common_pb2, ledgers_pb2, read_pb2
from offloaderd.standalone.walkthrough import SEGMENT_BYTES_MAX, Digest, Walkthrough, WalkthroughFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from offloaderd.core.model import TopicName
    from offloaderd.standalone.walkthrough import Comparison, Progress

REAL_TIME = "processes"

ENTRIES = [b"one", b"two", b"three", b"four"]


@dataclass
class FakeClient:
    """A daemon's client: keeps what is appended and gives it back, unless told to change it."""

    taken: list[str] = field(default_factory=list)
    stored: list[bytes] = field(default_factory=list)
    spoil: Callable[[list[bytes]], list[bytes]] = list
    tier: common_pb2.Tier.ValueType = common_pb2.TIER_OBJECTS
    lost_entries: int = 0
    calls: list[str] = field(default_factory=list)
    policy: dict[str, object] = field(default_factory=dict)

    async def topics(self, prefix: str) -> list[admin_pb2.TopicSummary]:
        """List."""
        assert prefix == "public/default"
        return [admin_pb2.TopicSummary(topic=name) for name in self.taken]

    async def enable(self, topic: TopicName, **policy: object) -> None:
        """Note it."""
        self.calls.append(f"enable {topic.local}")
        self.policy = policy

    async def status(self, topic: TopicName) -> admin_pb2.StatusResponse:
        """Not known at first, then two entries behind."""
        if not self.stored:
            raise NotFound("not yet")
        status = admin_pb2.TopicStatus(lag_entries=2, buffer_bytes=7, stalled_reason="")
        return admin_pb2.StatusResponse(topics=[status])

    async def segments(self, topic: TopicName) -> list[admin_pb2.Segment]:
        """One committed segment."""
        count = len(self.stored) - self.lost_entries
        return [admin_pb2.Segment(status="Offloaded", entries=count), admin_pb2.Segment(status="Assigned", entries=9)]

    async def append(
        self,
        topic: TopicName,
        batches: AsyncIterator[list[bytes]],
        answered: Callable[[ledgers_pb2.AppendResponse], None],
    ) -> None:
        """Take everything."""
        self.calls.append("append")
        async for batch in batches:
            self.stored += batch
            answered(ledgers_pb2.AppendResponse(entry_count=len(batch)))

    async def offload(self, topic: TopicName, *, wait: bool) -> AsyncIterator[admin_pb2.OffloadProgress]:
        """Done."""
        assert wait
        self.calls.append("offload")
        yield admin_pb2.OffloadProgress(done=True)

    async def read(self, topic: TopicName, **_: object) -> AsyncIterator[read_pb2.ReadResponse]:
        """Give it back, one entry an answer."""
        self.calls.append("read")
        for payload in self.spoil(self.stored):
            yield read_pb2.ReadResponse(batch=common_pb2.EntryBatch(payloads=[payload]), tier=self.tier)


@dataclass
class Entries:
    """A small data set."""

    entries: Sequence[bytes] = tuple(ENTRIES)
    title: str = "a test"
    name: str = "orders"
    total_entries: int | None = None
    skipped: int = 2

    async def batches(self) -> AsyncIterator[list[bytes]]:
        """Batches of three."""
        for start in range(0, len(self.entries), 3):
            yield list(self.entries[start : start + 3])


@dataclass
class FakeScreen:
    """Remembers what was shown."""

    shown: list[str] = field(default_factory=list)
    last: Progress | None = None
    comparison: Comparison | None = None

    def appending(self, title: str, topic: TopicName) -> None:
        """Remember the topic."""
        self.shown.append(f"appending {title} to {topic.local}")

    def progress(self, now: Progress) -> None:
        """Remember the last."""
        self.last = now

    def offloading(self, skipped: int) -> None:
        """Remember."""
        self.shown.append(f"offloading, {skipped} skipped")

    def stored(self, segments: Sequence[admin_pb2.Segment]) -> None:
        """Remember the count."""
        self.shown.append(f"stored {len(segments)}")

    def reading(self, entries: int, total: int) -> None:
        """Nothing."""

    def compared(self, comparison: Comparison) -> None:
        """Remember."""
        self.comparison = comparison


async def walk(client: FakeClient, entries: Sequence[bytes] = ENTRIES) -> tuple[TopicName, FakeScreen]:
    """Walk through."""
    screen = FakeScreen()
    clock = SystemClock()
    topic = await Walkthrough(client, Entries(entries), screen, clock).run()  # type: ignore[arg-type]
    return topic, screen


async def test_a_good_daemon_passes() -> None:
    """Every step happens in order, and the end is shown with its numbers."""
    client = FakeClient()
    topic, screen = await walk(client)
    assert topic.local == "orders"
    assert client.calls == ["enable orders", "append", "offload", "read"]
    assert client.policy == {"segment_bytes_max": SEGMENT_BYTES_MAX}
    assert screen.shown == ["appending a test to orders", "offloading, 2 skipped", "stored 2"]
    assert screen.last is not None
    assert (screen.last.appended_entries, screen.last.committed_entries, screen.last.segments) == (4, 4, 1)
    assert (screen.last.lag_entries, screen.last.buffered_bytes, screen.last.appended_bytes) == (2, 7, 15)
    assert screen.comparison is not None
    assert screen.comparison.differences() == []
    assert screen.comparison.tiers == {"objects": 4}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda stored: stored[:-1],
        lambda stored: [*stored, b"x"],
        lambda stored: [*stored[1:], stored[0]],
        lambda stored: [b"onf", *stored[1:]],
        lambda stored: [b"onet", b"wo", *stored[2:]],
        lambda stored: [],
    ],
    ids=["lost", "more", "order", "bit", "boundary", "nothing"],
)
async def test_whatever_differs_is_noticed(spoil: Callable[[list[bytes]], list[bytes]]) -> None:
    """A lost, added, moved or changed entry, and bytes that moved over a boundary, fail the walkthrough."""
    with pytest.raises(WalkthroughFailed):
        await walk(FakeClient(spoil=spoil))


@pytest.mark.parametrize("tier", [common_pb2.TIER_SOURCE, common_pb2.TIER_BUFFER, common_pb2.TIER_UNSPECIFIED])
async def test_a_copy_that_did_not_come_from_the_bucket_proves_nothing(tier: common_pb2.Tier.ValueType) -> None:
    """The right bytes from another tier are a failure, and it says which tier."""
    with pytest.raises(WalkthroughFailed, match=r"not all entries were served from S3: 4 by"):
        await walk(FakeClient(tier=tier))


async def test_segments_that_hold_less_are_noticed() -> None:
    """What is committed must add up to what went in."""
    with pytest.raises(WalkthroughFailed, match="4 entries went in, the segments hold 3"):
        await walk(FakeClient(lost_entries=1))


async def test_an_empty_data_set_fails() -> None:
    """There is nothing to prove."""
    with pytest.raises(WalkthroughFailed, match="holds no entries"):
        await walk(FakeClient(), [])


async def test_each_run_takes_a_new_topic() -> None:
    """The name gets the first number that is free."""
    taken = [f"persistent://public/default/{name}" for name in ("orders", "orders-2", "orders-4")]
    topic, _ = await walk(FakeClient(taken=taken))
    assert topic.local == "orders-3"


@given(st.lists(st.binary(max_size=6), max_size=6), st.lists(st.binary(max_size=6), max_size=6))
def test_digests_are_equal_only_for_equal_entries(one: list[bytes], other: list[bytes]) -> None:
    """Boundaries count, batches do not."""
    left, right, again = Digest(), Digest(), Digest()
    left.add(one)
    right.add(other)
    for payload in one:
        again.add([payload])
    assert (left.hexdigest() == right.hexdigest()) == (one == other)
    assert left.hexdigest() == again.hexdigest()
    assert (left.entries, left.payload_bytes) == (len(one), sum(map(len, one)))
