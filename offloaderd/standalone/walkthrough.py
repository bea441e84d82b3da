"""The walkthrough: append a data set, follow its offload to S3, read it back and compare.

It uses the public gRPC API of the daemon, as a program of a user would. Its output goes to a Screen, so this module
knows neither terminal nor table. It fails unless every entry is read back from the bucket, bit for bit.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from offloaderd.client import DaemonClient
from offloaderd.core.aio import Group
from offloaderd.core.clock import Clock
from offloaderd.core.errors import NotFound, OffloaderError, Transient
from offloaderd.core.model import TopicName
from offloaderd.core.read_options import ReadPriority
from offloaderd.protocol.v1 import admin_pb2, common_pb2, ledgers_pb2
from offloaderd.standalone.dataset import Dataset

SEGMENT_BYTES_MAX = 16 * 1024 * 1024
"""Small, so that a data set of a hundred megabytes shows several segments."""
POLL_S = 0.25
NAMESPACE = "public/default"


class WalkthroughFailed(OffloaderError):
    """The entries that were read differ from the appended ones."""


@dataclass(slots=True)
class Digest:
    """SHA-256 over entries, each behind its length (4 bytes, big endian), so that boundaries count as well."""

    entries: int = 0
    payload_bytes: int = 0
    _hash: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def add(self, payloads: Iterable[bytes]) -> None:
        """Take entries in order."""
        for payload in payloads:
            self._hash.update(len(payload).to_bytes(4, "big"))
            self._hash.update(payload)
            self.entries += 1
            self.payload_bytes += len(payload)

    def hexdigest(self) -> str:
        """Return the digest so far."""
        return self._hash.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state of the walkthrough at a time, counted from its start; bytes are payload bytes."""

    seconds: float = 0.0
    total_entries: int | None = None
    appended_entries: int = 0
    appended_bytes: int = 0
    buffered_bytes: int = 0
    open_entries: int = 0
    open_bytes: int = 0
    committed_entries: int = 0
    committed_bytes: int = 0
    segments: int = 0
    lag_entries: int = 0
    lag_bytes: int = 0
    lag_seconds: float | None = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Digests of the appended and the read entries; `tiers` counts the read entries by tier."""

    sent: Digest
    received: Digest
    tiers: dict[str, int]
    seconds: float

    def differences(self) -> list[str]:
        """Return the differences as text; empty when the copy in the bucket is proven."""
        found = []
        if self.sent.entries != self.received.entries:
            found.append(f"{self.sent.entries:,} entries went in, {self.received.entries:,} came back")
        if self.sent.payload_bytes != self.received.payload_bytes:
            found.append(f"{self.sent.payload_bytes:,} bytes went in, {self.received.payload_bytes:,} came back")
        if self.sent.hexdigest() != self.received.hexdigest():
            found.append(f"SHA-256 in is {self.sent.hexdigest()}, out is {self.received.hexdigest()}")
        elsewhere = {tier: count for tier, count in self.tiers.items() if tier != "objects"}
        if elsewhere:
            counts = ", ".join(f"{count:,} by {tier}" for tier, count in elsewhere.items())
            found.append(f"not all entries were served from S3: {counts}")
        return found


class Screen(Protocol):
    """Output of the walkthrough."""

    def appending(self, title: str, topic: TopicName) -> None:
        """Show that entries are going to be appended."""

    def progress(self, now: Progress) -> None:
        """Show the progress; called several times a second."""

    def offloading(self, skipped: int) -> None:
        """Show that everything but so many empty lines is appended, and the manual offload begins."""

    def stored(self, segments: Sequence[admin_pb2.Segment]) -> None:
        """Show the committed segments."""

    def reading(self, entries: int, total: int) -> None:
        """Show the progress of the read; called several times a second."""

    def compared(self, comparison: Comparison) -> None:
        """Show the comparison."""


class Walkthrough:
    """One run over one new topic."""

    def __init__(self, client: DaemonClient, dataset: Dataset, screen: Screen, clock: Clock) -> None:
        self._client = client
        self._dataset = dataset
        self._screen = screen
        self._clock = clock
        self._started = clock.monotonic()
        self._sent = Digest()
        self._now = Progress(total_entries=dataset.total_entries)

    async def run(self) -> TopicName:
        """Run all steps; return the topic. Raises WalkthroughFailed for a difference, and what the client raises."""
        topic = await self._new_topic()
        await self._client.enable(topic, segment_bytes_max=SEGMENT_BYTES_MAX)
        self._screen.appending(self._dataset.title, topic)
        self._started = self._clock.monotonic()
        await self._watched(topic, self._append(topic))
        if not self._sent.entries:
            raise WalkthroughFailed(f"{self._dataset.title} holds no entries", hint="one entry a line is expected")
        self._screen.offloading(self._dataset.skipped)
        await self._watched(topic, self._offload(topic))
        segments = await self._client.segments(topic)
        self._screen.stored(segments)
        comparison = await self._read_back(topic)
        self._screen.compared(comparison)
        differences = comparison.differences()
        committed = sum(segment.entries for segment in segments if segment.status == "Offloaded")
        if committed != self._sent.entries:
            differences.append(f"{self._sent.entries:,} entries went in, the segments hold {committed:,}")
        if differences:
            raise WalkthroughFailed("; ".join(differences), hint="the daemon's log above may say why")
        return topic

    async def _new_topic(self) -> TopicName:
        """Return a new topic: the name of the data set, with a number from the second run on."""
        taken = {topic.topic for topic in await self._client.topics(NAMESPACE)}
        number = 1
        while True:
            suffix = f"-{number}" if number > 1 else ""
            topic = TopicName.parse(f"{NAMESPACE}/{self._dataset.name}{suffix}")
            if str(topic) not in taken:
                return topic
            number += 1

    async def _watched(self, topic: TopicName, work: Awaitable[None]) -> None:
        """Do the work while another task shows the progress; the final state is shown last."""
        async with Group() as group:
            watcher = group.create_task(self._watch(topic), name="walkthrough progress")
            await work
            watcher.cancel()
        await self._show_progress(topic)

    async def _watch(self, topic: TopicName) -> None:
        while True:
            await self._show_progress(topic)
            await self._clock.sleep(POLL_S)

    async def _show_progress(self, topic: TopicName) -> None:
        """Show the status of the topic; nothing while the daemon does not know it."""
        try:
            status = (await self._client.status(topic)).topics[0]
            segments = await self._client.segments(topic)
        except (NotFound, Transient):
            return
        committed = [segment for segment in segments if segment.status == "Offloaded"]
        self._now = replace(
            self._now,
            seconds=self._clock.monotonic() - self._started,
            buffered_bytes=status.buffer_bytes,
            open_entries=status.open_segment_entries,
            open_bytes=status.open_segment_bytes,
            committed_entries=sum(segment.entries for segment in committed),
            committed_bytes=sum(segment.payload_bytes for segment in committed),
            segments=len(committed),
            lag_entries=status.lag_entries,
            lag_bytes=status.lag_bytes,
            lag_seconds=None if status.lag_age_unknown else status.lag_seconds,
            failure=status.stalled_reason,
        )
        self._screen.progress(self._now)

    async def _append(self, topic: TopicName) -> None:
        def answered(answer: ledgers_pb2.AppendResponse) -> None:
            appended = self._now.appended_entries + answer.entry_count
            self._now = replace(self._now, appended_entries=appended, appended_bytes=self._sent.payload_bytes)

        await self._client.append(topic, self._hashed(), answered)

    async def _hashed(self) -> AsyncIterator[Sequence[bytes]]:
        async for batch in self._dataset.batches():
            self._sent.add(batch)
            yield batch

    async def _offload(self, topic: TopicName) -> None:
        async for _ in self._client.offload(topic, wait=True):
            pass

    async def _read_back(self, topic: TopicName) -> Comparison:
        received, tiers = Digest(), dict[str, int]()
        started = shown = self._clock.monotonic()
        answers = self._client.read(topic, read_priority=ReadPriority.TIERED_STORAGE_FIRST)
        async for answer in answers:
            received.add(answer.batch.payloads)
            tier = common_pb2.Tier.Name(answer.tier).removeprefix("TIER_").lower()
            tiers[tier] = tiers.get(tier, 0) + len(answer.batch.payloads)
            if self._clock.monotonic() - shown >= POLL_S:
                shown = self._clock.monotonic()
                self._screen.reading(received.entries, self._sent.entries)
        seconds = self._clock.monotonic() - started
        return Comparison(sent=self._sent, received=received, tiers=tiers, seconds=seconds)
