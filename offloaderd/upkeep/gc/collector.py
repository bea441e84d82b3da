"""Collecting what nobody refers to: buckets and open uploads against the metadata of all topics of the cluster.

    uploads, a first look at the metadata, the objects, a second look -> judge -> for each batch: a third look, delete

Why it is safe without a record of its own: ids are never used twice, and an attempt is recorded before its first byte.
So what was listed before a look and is not in that look is dead for ever, whoever does what at the same time; to
delete it late, twice, by two daemons or only in part does no harm, and what is left is found again. A trash record is
for segments that are still referred to; here nothing is. On top of that: nothing younger than the grace age goes (by
the store's own clock), nothing that another cluster or program wrote, nothing that holds the last copy of an entry
(see orphans.py), and right before an object is deleted it must still be the very one that was judged.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from uuid import UUID

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, OffloaderError
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata.port import MetadataStore
from offloaderd.objects import keys
from offloaderd.objects.port import SegmentStore
from offloaderd.upkeep.gc.collection import Collection
from offloaderd.upkeep.gc.findings import Find, Rules, Summary, Verdict
from offloaderd.upkeep.settings import GcSettings
from offloaderd.upkeep.stored import Site

log = structlog.get_logger(__name__)

FIRST_S = 900.0
"""A daemon that was just started collects about then, though the interval be longer: it may not live that long."""


class Collector:
    """Compares and deletes in all sites of a cluster; one collection at a time."""

    def __init__(
        self,
        objects: SegmentStore,
        metadata: MetadataStore,
        sites: Sequence[Site],
        *,
        clock: Clock,
        metrics: Metrics,
        source: LedgerSource | None = None,
        readers_s: float = 0.0,
    ) -> None:
        """Collect in `sites`; without a `source` no entry can be read again that is not offloaded.

        Readers may use for `readers_s` what has left a topic.
        """
        self._objects = objects
        self._metadata = metadata
        self._sites = sites
        self._clock = clock
        self._metrics = metrics
        self._source = source
        self._readers_s = readers_s
        self._busy = False

    async def collect(
        self, *, grace_s: float, apply: bool, also: AbstractSet[UUID] = frozenset()
    ) -> AsyncGenerator[Find | Summary, None]:
        """Yield every find as it is judged and dealt with, and the sum at the end. Deletes only with `apply`.

        `also` names segments that go although they would raise an alarm; never those that a topic refers to.

        Raises Conflict while another collection runs and when the metadata may refer to what cannot be seen,
        CorruptData for a node that cannot be read, and what the stores raise: then nothing more is deleted.
        """
        if self._busy:
            raise Conflict("a collection is under way", hint="wait for it to end")
        self._busy = True
        summary = Summary(applied=apply, grace_s=grace_s)
        started = self._clock.monotonic()
        outcome, alarms = "failed", Alarms()
        try:
            rules = Rules(
                sites=self._sites,
                grace_s=grace_s,
                apply=apply,
                now_ms=await self._now_ms(),
                also=also,
                source=self._source,
                readers_s=self._readers_s,
            )
            async with aclosing(Collection(self._objects, self._metadata, rules, summary).finds()) as finds:
                async for find in finds:
                    summary.count(find)
                    _tell(find, alarms)
                    yield find
            outcome = "ok"
        finally:
            self._busy = False
            alarms.tell_repeated()
            summary.seconds = self._clock.monotonic() - started
            self._metrics.show_collection(outcome, summary.verdicts, summary.finds, summary.rubbish_bytes)
        if outcome == "ok":
            self._metrics.gc_last_complete_timestamp_seconds.set(self._clock.wall_ms() / 1000)
        log.info(
            "gc.finished",
            applied=apply,
            duration_s=round(summary.seconds, 3),
            topics=summary.topics,
            segments=summary.segments,
            finds=dict(summary.finds),
            rubbish_bytes=summary.rubbish_bytes,
            deleted_bytes=summary.deleted_bytes,
        )
        yield summary

    async def keep(self, current: Callable[[], GcSettings], leads: Callable[[], bool]) -> None:
        """Collect at an interval, for as long as this daemon is the one who does it; until cancelled.

        The settings are asked for before and after each pause, so that a collection never goes by some that no longer
        hold. Two who both think that they collect do no harm. A collection that fails is told, and tried again after
        the interval.
        """
        pause_s = min(FIRST_S, current().interval_s)
        while True:
            await self._clock.sleep(self._clock.jitter(pause_s))
            settings = current()
            pause_s = settings.interval_s
            if settings.mode == "off" or not leads():
                continue
            try:
                async with aclosing(self.collect(grace_s=settings.grace_s, apply=settings.mode == "delete")) as finds:
                    async for _ in finds:
                        pass
            except OffloaderError as error:
                log.warning("gc.failed", error=str(error), error_class=type(error).__name__)

    async def _now_ms(self) -> int:
        """Ask the service what time it is: ages are differences of its own times, whatever clock this machine has."""
        home = self._sites[0]
        key, store = f"{home.prefix}{keys.GC_CLOCK}", self._objects.at(home.bucket)
        info = await store.put(key, b"")
        now_ms = info.modified_ms or (await store.head(key)).modified_ms
        await store.delete([key])
        for site in self._sites:
            await self._objects.at(site.bucket).delete([f"{site.prefix}{keys.RETENTION_CLOCK}"])  # a crash may leave it
        return now_ms


class Alarms:
    """Alarms of one collection: one of each reason is told when it is found, how many there were at the end."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def is_new(self, find: Find) -> bool:
        """Count an alarm; says whether none of its reason came before."""
        self._counts[find.kind.value, find.reason] += 1
        return self._counts[find.kind.value, find.reason] == 1

    def tell_repeated(self) -> None:
        """Say how often those came that came more than once."""
        for (kind, reason), count in self._counts.items():
            if count > 1:
                log.error("gc.alarm_repeated", kind=kind, reason=reason, objects=count)


def _tell(find: Find, alarms: Alarms) -> None:
    facts = {"key": find.key, "kind": find.kind.value, "reason": find.reason}
    if find.verdict is Verdict.ALARM and alarms.is_new(find):
        log.error("gc.alarm", **facts, hint="docs/failures.md says what to do")
    elif find.verdict is Verdict.FAILED:
        log.warning("gc.delete_failed", **facts)
    elif find.verdict is Verdict.DELETED:
        log.info("gc.deleted", **facts, bytes=find.size_bytes, age_s=round(find.age_s))
