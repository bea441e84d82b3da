"""The scrub: every owner reads the segments of its topics again and again, slowly, and reports damage.

The segment that was not verified for the longest time is first; one segment at a time in a daemon, at a bounded rate.
Progress is recorded under the owner's fence (`verified`), some seconds late, so that the next owner continues. A flaw
counts only after a second read, because a bit can flip in transfer too. Nothing is repaired: damage is logged and
counted, and the grants of its ledgers are revoked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from math import inf
from uuid import UUID

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, Fenced, NewerRecord, OffloaderError
from offloaderd.core.limits import Admission, TokenBucket
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.port import Create, MetadataStore, Replace
from offloaderd.metadata.records import verified as verified_record
from offloaderd.metadata.records.verified import Cursor, SegmentVerified, Verified
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.port import ObjectReader
from offloaderd.objects.retrying import RetryingReader
from offloaderd.topic.offloader import TopicOffloader
from offloaderd.upkeep.flaws import Flaw, Kind, Level, of_places, unreachable
from offloaderd.upkeep.settings import ScrubSettings
from offloaderd.upkeep.stored import Site
from offloaderd.upkeep.verify.segment import Target, check_inside, check_tables

log = structlog.get_logger(__name__)

LOOK_S = 300.0
"""How often a topic without a due segment is checked."""
RECORD_S = 30.0
"""Least time between two records of progress."""
RETRY_S = 60.0
AGAIN_S = 3600.0
"""When a segment with a flaw is read again, so that a repair shows."""
CONFIRM_S = 2.0
LOGGED_MAX = 20
"""Flaws of one segment that are logged one by one."""


@dataclass(slots=True)
class _Progress:
    """Results of a topic; `version` is that of the node that holds `written`, None without a node."""

    segments: dict[UUID, SegmentVerified]
    cursor: Cursor | None
    version: int | None
    written: bytes = b""
    written_s: float = field(default=float("-inf"))


class Scrubber:
    """Scrub of each topic. `damaged` is called with ledgers whose copies are damaged."""

    def __init__(
        self,
        objects: ObjectReader,
        metadata: MetadataStore,
        sites: Sequence[Site],
        options: ScrubSettings,
        *,
        clock: Clock,
        metrics: Metrics,
        budget: Admission | None = None,
        damaged: Callable[[TopicName, Sequence[int], str], Awaitable[None]] | None = None,
    ) -> None:
        self._metadata = metadata
        self._cluster = sites[0].cluster
        self._buckets = {site.bucket for site in sites}
        self._options = options
        self._clock = clock
        self._metrics = metrics
        self._damaged = damaged
        self._turns = asyncio.Semaphore(1)
        self._throttle = TokenBucket(options.bytes_per_s, clock, burst_s=0)
        self._reader = RetryingReader(
            objects, clock=clock, throttle=self._throttle, budget=budget, read=metrics.scrub_bytes.inc
        )

    def follow(self, options: ScrubSettings) -> None:
        """Use another interval from each topic's next turn; `enabled` stays as it is."""
        self._options = options.model_copy(update={"enabled": self._options.enabled})
        self._throttle.per_s = options.bytes_per_s

    async def run(self, owned: TopicOffloader) -> None:
        """Scrub a topic until cancelled. Raises Fenced."""
        progress: _Progress | None = None
        while self._options.enabled:
            try:
                if progress is None:
                    progress = await self._load(owned)
                wait_s = await self.turn(owned, progress)
            except Fenced:
                raise
            except OffloaderError as error:
                log.warning("scrub.retried", topic=str(owned.topic), error=str(error))
                self._metrics.scrub_objects.labels(result="unreachable").inc()
                progress, wait_s = None, RETRY_S
            due = self._due(owned.map, progress) if progress is not None else None
            patience_s = wait_s if progress is None else inf if due is None else due[1]
            with owned.rest.until(self._clock.monotonic() + patience_s):
                await self._clock.sleep(self._clock.jitter(wait_s))

    async def turn(self, owned: TopicOffloader, progress: _Progress) -> float:
        """Read the due segment, if any; return how long to wait before the next turn."""
        due = self._due(owned.map, progress)
        self._show(owned, progress)
        if due is None or due[1] > 0:
            await self._keep(owned, progress, at_once=True)
            return min(due[1], LOOK_S) if due is not None else LOOK_S
        segment, _ = due
        async with self._turns:
            await self._scrub(owned, progress, segment)
        self._show(owned, progress)
        return 0.0

    def _due(self, topic_map: TopicMap, progress: _Progress) -> tuple[CommittedSegment, float] | None:
        """Return the next segment, and in how many seconds: one that was begun, else the longest unverified."""
        here = [one for one in topic_map.segments if one.bucket in self._buckets]
        if progress.cursor is not None:
            for segment in here:
                if segment.segment_id == progress.cursor.segment_id:
                    return segment, 0.0
        now_ms = self._clock.wall_ms()
        waits = [(self._wait_s(one, progress.segments.get(one.segment_id), now_ms), one.begin, one) for one in here]
        if not waits:
            return None
        wait_s, _, segment = min(waits, key=lambda wait: wait[:2])
        return segment, wait_s

    def _wait_s(self, segment: CommittedSegment, seen: SegmentVerified | None, now_ms: int) -> float:
        """Return in how many seconds a segment is due; a time in the future is from a wrong clock, so it is due now."""
        if seen is None:
            since_ms, every_s = segment.offloaded_ms, self._options.first_after_s
        else:
            since_ms, every_s = seen.verified_ms, AGAIN_S if seen.flaws else self._options.interval_s
        return every_s - (now_ms - since_ms) / 1000 if since_ms <= now_ms else 0.0

    async def _scrub(self, owned: TopicOffloader, progress: _Progress, segment: CommittedSegment) -> None:
        flaws = await self._check(owned, progress, segment)
        if flaws:
            progress.cursor = None
            await self._clock.sleep(CONFIRM_S)
            flaws = await self._check(owned, progress, segment)
        progress.cursor = None
        if not any(one.segment_id == segment.segment_id for one in owned.map.segments):
            return  # deleted meanwhile
        progress.segments[segment.segment_id] = SegmentVerified(
            verified_ms=self._clock.wall_ms(),
            level=Level.FULL.value,
            flaws=len(flaws),
            flaw=str(flaws[0]) if flaws else "",
        )
        await self._report(owned.topic, segment, flaws)
        await self._keep(owned, progress, at_once=bool(flaws))

    async def _check(self, owned: TopicOffloader, progress: _Progress, segment: CommittedSegment) -> list[Flaw]:
        """Return all flaws of a segment and its copy; continues at the cursor.

        A place that is away does not hide the damage of the other; without damage its error is raised.
        """
        begun = progress.cursor
        start = begun.blocks if begun is not None and begun.segment_id == segment.segment_id else 0
        places: list[tuple[tuple[str, str], list[Flaw]]] = []
        before = 0  # blocks of the places that are done; the cursor counts those of all
        away: OffloaderError | None = None
        for one in (one for one in segment.each_place if one.bucket in self._buckets):
            target = Target.of(one, owned.topic, self._cluster, owned.map.losses)
            flaws: list[Flaw] = []
            places.append((one.place, flaws))
            try:
                tables = await check_tables(self._reader, target)
                flaws += tables.flaws
                first = max(0, start - before) if away is None else 0
                async with aclosing(check_inside(self._reader, target, tables, Level.FULL, start=first)) as steps:
                    async for done, found in steps:
                        flaws += found
                        if done and away is None and not any(bad for _, bad in places):
                            progress.cursor = Cursor(segment.segment_id, before + done)
                            await self._keep(owned, progress)
                before += len(tables.manifest.blocks) if tables.manifest is not None else 0
            except Conflict:
                raise
            except OffloaderError as error:
                away = error
                flaws.append(unreachable(error, one.keys, topic=owned.topic, committed=one))
        known = [flaw for flaw in of_places(places) if flaw.kind is not Kind.UNREACHABLE]
        if away is not None and not known:
            raise away
        return known

    async def _report(self, topic: TopicName, segment: CommittedSegment, flaws: Sequence[Flaw]) -> None:
        bad = len({flaw.key for flaw in flaws})
        self._metrics.scrub_objects.labels(result="damaged").inc(bad)
        self._metrics.scrub_objects.labels(result="sound").inc(max(0, 3 - bad))
        for flaw in flaws[:LOGGED_MAX]:
            log.error(
                "scrub.damaged",
                topic=str(topic),
                segment_id=str(segment.segment_id),
                kind=flaw.kind.value,
                flaw=str(flaw),
                entries=flaw.entries,
                hint=flaw.what_to_do,
            )
        serious = [flaw for flaw in flaws if flaw.kind not in {Kind.LABELS, Kind.LOSSES}]
        if serious:
            self._metrics.checksum_failures.labels(where="scrub").inc(len(serious))
            if self._damaged is not None:
                ledgers = [part.ledger_id for part in segment.slices]
                await self._damaged(topic, ledgers, f"the scrub found its copy damaged: {serious[0]}")

    def _show(self, owned: TopicOffloader, progress: _Progress) -> None:
        """Set the metrics of a topic: the oldest verification of a segment, and the number of damaged segments."""
        seen = [(one, progress.segments.get(one.segment_id)) for one in owned.map.segments]
        oldest_ms = min((one.offloaded_ms if found is None else found.verified_ms for one, found in seen), default=0)
        topic = str(owned.topic)
        damaged = sum(found is not None and found.flaws > 0 for _, found in seen)
        self._metrics.scrub_damaged_segments.labels(topic=topic).set(damaged)
        self._metrics.scrub_last_complete_timestamp_seconds.labels(topic=topic).set(oldest_ms / 1000)

    async def _load(self, owned: TopicOffloader) -> _Progress:
        topic, path = owned.topic, paths.verified(owned.topic)
        if (node := await nodes.node(self._metadata, path)) is None:
            return _Progress({}, None, None)
        try:
            known = verified_record.decode(node.value, path=path)
        except NewerRecord:
            raise
        except OffloaderError as error:
            log.warning("scrub.record_unreadable", topic=str(topic), error=str(error), hint="it begins anew")
            known = Verified({})
        return _Progress(known.of(owned.map.segments), known.cursor, node.version, node.value)

    async def _keep(self, owned: TopicOffloader, progress: _Progress, *, at_once: bool = False) -> None:
        """Record the progress, at most every RECORD_S unless `at_once`. Raises Fenced, Conflict, NotFound."""
        now_s = self._clock.monotonic()
        if not at_once and now_s - progress.written_s < RECORD_S:
            return
        here = {one.segment_id for one in owned.map.segments}
        kept = {segment_id: one for segment_id, one in progress.segments.items() if segment_id in here}
        fitting = verified_record.fitting(kept, owned.map.segments)
        value = verified_record.encode(replace(fitting, cursor=progress.cursor))
        progress.segments = kept
        if value == progress.written:
            return
        path = paths.verified(owned.topic)
        version = progress.version
        step = Create(path, value) if version is None else Replace(path, value, version)

        async def recorded() -> bool:
            found = await nodes.node(self._metadata, path)
            return found is not None and found.value == value

        await owned.record.fence.settle([step], recorded)
        progress.version = 0 if version is None else version + 1
        progress.written, progress.written_s = value, now_s
