"""Garbage collection: deletes objects and open uploads without a reference in the metadata of any topic of the cluster.

    list uploads, read references, list objects, read references -> classify -> each batch: read references, delete

It is safe without a record of its own, because ids are never used twice and an attempt is recorded before its first
byte. An object that was listed before the references were read, and is not among them, will never be referred to,
whatever runs beside. Deleting it late, twice, by two daemons or in part does no harm; the next collection finds the
rest. A trash record is needed only for segments with references. Three more rules: objects younger than the grace age
(by the store's clock) stay; objects of another cluster or program, and last copies of entries, stay (findings.py);
right before its deletion an object must still be the one that was classified.

An open upload has no metadata that names its cluster. Where others write under the same prefix, uploads without objects
are reported and not aborted. If another cluster's upload were aborted all the same, it would begin its segment again.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

import structlog

from offloaderd.core.aio import each
from offloaderd.core.clock import Clock
from offloaderd.core.errors import (
    BucketMissing,
    Conflict,
    Denied,
    IdentityRefused,
    NoSpace,
    NotFound,
    OffloaderError,
    Transient,
)
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata import identity
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects import keys, marker
from offloaderd.objects.keys import ObjectKind
from offloaderd.objects.port import ObjectInfo, SegmentStore, find
from offloaderd.upkeep import stored
from offloaderd.upkeep.copy_removal import removal_of, removed
from offloaderd.upkeep.gc import references
from offloaderd.upkeep.gc.abandoned import Unowned
from offloaderd.upkeep.gc.findings import (
    ALARMS,
    GARBAGE,
    Classification,
    Finding,
    Kind,
    OrphanClassifier,
    Rules,
    Summary,
    Verdict,
    foreign,
)
from offloaderd.upkeep.gc.references import Committed, References
from offloaderd.upkeep.settings import GcSettings
from offloaderd.upkeep.stored import KINDS, Counts, Site, StoredSegment

log = structlog.get_logger(__name__)

FIRST_S = 900.0
"""When a daemon collects for the first time after its start, if the interval is longer: it may not live that long."""


class Collector:
    """Garbage collector of a cluster's sites; it runs one collection at a time."""

    def __init__(
        self,
        objects: SegmentStore,
        metadata: MetadataStore,
        sites: Sequence[Site],
        *,
        clock: Clock,
        metrics: Metrics,
        source: LedgerSource | None = None,
        reader_grace_s: float = 0.0,
    ) -> None:
        """Collect in `sites`. Without a `source` entries that are not offloaded cannot be read again.

        Readers may use segments that have left a topic for `reader_grace_s`.
        """
        self._objects = objects
        self._metadata = metadata
        self._sites = sites
        self._clock = clock
        self._metrics = metrics
        self._source = source
        self._reader_grace_s = reader_grace_s
        self._busy = False

    async def collect(
        self, *, grace_s: float, apply: bool, also: AbstractSet[UUID] = frozenset()
    ) -> AsyncGenerator[Finding | Summary, None]:
        """Yield each finding as it is classified and handled, and the summary at the end. Deletes only with `apply`.

        `also` names segments to delete although they raise an alarm, but never those with a reference.

        Raises Conflict while another collection runs, and when the metadata may hold references that cannot be read;
        CorruptData for an unreadable node; and the errors of the stores. Nothing more is deleted after an error.
        """
        if self._busy:
            raise Conflict("a collection is under way", hint="wait for it to end")
        self._busy = True
        summary = Summary(applied=apply, grace_s=grace_s)
        started = self._clock.monotonic()
        alarms: Counter[tuple[str, str]] = Counter()
        outcome = "failed"
        try:
            clocks = await self._clocks()
            rules = Rules(
                sites=list(clocks),
                grace_s=grace_s,
                apply=apply,
                now_ms=clocks[self._sites[0]],
                clocks={site.bucket: now_ms for site, now_ms in clocks.items()},
                also=also,
                source=self._source,
                reader_grace_s=self._reader_grace_s,
            )
            async with aclosing(
                Collection(self._objects, self._metadata, rules, summary, self._clock).finds()
            ) as finds:
                async for find in finds:
                    summary.count(find)
                    _log(find, alarms)
                    yield find
            outcome = "ok"
        finally:
            self._busy = False
            for (kind, reason), count in alarms.items():
                if count > 1:
                    log.error("gc.alarm_repeated", kind=kind, reason=reason, objects=count)
            summary.seconds = self._clock.monotonic() - started
            self._metrics.show_collection(outcome, summary.verdicts, summary.finds, summary.rubbish_bytes)
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
        """Collect at an interval while this daemon leads the job, until cancelled.

        The settings are read before and after each pause, so that no collection runs by old ones. Two daemons that both
        think that they lead do no harm. A failed collection is logged and repeated after the interval.
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

    async def _clocks(self) -> dict[Site, int]:
        """Return the sites that can be written, with the time of each store's clock.

        Ages are differences of the store's times, whatever clock this machine has. A site other than the first that
        does not answer, or may not be written, is left out.
        """
        found: dict[Site, int] = {}
        for number, site in enumerate(self._sites):
            store = self._objects.at(site.bucket)
            try:
                now_ms = await stored.store_now_ms(store, f"{site.prefix}{keys.GC_CLOCK}")
                await store.delete([f"{site.prefix}{keys.RETENTION_CLOCK}"])  # a crash may leave it
            except (Transient, Denied, NoSpace, BucketMissing) as error:
                if not number:
                    raise
                log.warning("gc.place_skipped", bucket=site.bucket, prefix=site.prefix, error=str(error))
            else:
                found[site] = now_ms
        return found


def _log(find: Finding, alarms: Counter[tuple[str, str]]) -> None:
    """Log a finding; of alarms the first of each kind and reason, which `alarms` counts."""
    facts = {"key": find.key, "kind": find.kind.value, "reason": find.reason}
    if find.verdict is Verdict.ALARM:
        alarms[find.kind.value, find.reason] += 1
        if alarms[find.kind.value, find.reason] == 1:
            log.error("gc.alarm", **facts)
    elif find.verdict is Verdict.FAILED:
        log.warning("gc.delete_failed", **facts)
    elif find.verdict is Verdict.DELETED:
        log.info("gc.deleted", **facts, bytes=find.size_bytes, age_s=round(find.age_s))


BATCH = 64
"""Segments that are classified and deleted by one read of the references."""


@dataclass(slots=True)
class _Listing:
    """What the buckets hold, by the references of the first read."""

    committed: dict[tuple[UUID, tuple[str, str]], dict[ObjectKind, ObjectInfo]] = field(default_factory=dict)
    """By segment and place: a segment may have a copy."""
    unreferenced: list[StoredSegment] = field(default_factory=list)
    uploads: list[StoredSegment] = field(default_factory=list)
    """Uploads without objects, or of committed segments; of objects only drafts are listed here."""


class Collection:
    """One collection. It fills `summary` with the counts of what it lists."""

    def __init__(
        self, objects: SegmentStore, metadata: MetadataStore, rules: Rules, summary: Summary, clock: Clock
    ) -> None:
        self._objects = objects
        self._metadata = metadata
        self._clock = clock
        self._rules = rules
        self._cluster = rules.sites[0].cluster
        self._places = {(site.bucket, site.prefix) for site in rules.sites}
        self._summary = summary
        self._removals: dict[TopicName, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._shared: set[tuple[str, str]] = set()
        self._deployment_id = ""
        self._marked_ms: dict[tuple[str, str], int] = {}
        """Since when each place is this deployment's, by the store's clock."""

    async def finds(self) -> AsyncGenerator[Finding, None]:
        """Yield every finding: damage, then objects without a reference, then what an owner should have deleted."""
        await self._check_places()
        known, listing = await self._list()
        after = await references.read(self._metadata)
        self._summary.topics = len(after.topics)
        broken: set[UUID] = set()
        for segment_id, committed in known.committed.items():
            if committed.place not in self._places:
                self._summary.elsewhere += 1
                broken.add(segment_id)  # its objects were not listed
            for place in committed.places:
                if place not in self._places or segment_id not in after.committed:
                    continue
                objects = listing.committed.get((segment_id, place), {})
                for finding in await self._damage(segment_id, committed, place, objects):
                    broken.add(segment_id)
                    yield finding
        classifier = OrphanClassifier(
            self._objects,
            self._metadata,
            after,
            cluster=self._cluster,
            deployment_id=self._deployment_id,
            broken=broken,
        )
        for batch in _batches([one for one in listing.unreferenced if not after.holds(one.segment_id, one.place)]):
            for finding in await self._handled(await each(batch, lambda one: self._classified(classifier, one))):
                yield finding
        held = {*after.attempts, *after.trash}
        uploads = [one for one in listing.uploads if one.segment_id not in held]
        await self._note_shared_places(listing.unreferenced, uploads)
        for batch in _batches(uploads):
            for finding in await self._handled([self._classified_upload(one, after) for one in batch]):
                yield finding
        unowned = Unowned(self._objects, self._metadata, self._rules)
        for finds in (unowned.trash, unowned.attempts):
            async with aclosing(finds(after, self._summary)) as left:
                async for finding in left:
                    yield finding

    async def _check_places(self) -> None:
        """Read the markers of the places. Raises IdentityRefused where another deployment works in one."""
        ours = await identity.deployment(self._metadata)
        if ours is None:
            return  # no daemon of a version that makes one has worked here yet
        self._deployment_id = str(ours.deployment_id)
        for site in self._rules.sites:
            found = await marker.read(self._objects.at(site.bucket), site.prefix, site.cluster)
            if found is None:
                self._marked_ms[site.bucket, site.prefix] = self._rules.clocks[site.bucket]
                continue
            if whose := found.other_than(self._deployment_id):
                raise IdentityRefused(
                    f"nothing is collected below {site.prefix!r} in bucket {site.bucket!r}: {whose}", hint=marker.HINT
                )
            self._marked_ms[site.bucket, site.prefix] = found.stored_ms
            others = await marker.provisional_deployments(self._objects.at(site.bucket), site.prefix, site.cluster)
            if others.keys() - {self._deployment_id}:
                self._shared.add((site.bucket, site.prefix))

    async def _list(self) -> tuple[References, _Listing]:
        """Read the references and list the buckets. Committed and open segments need no classification."""
        listing, counts = _Listing(), Counts()
        uploads = {site: await stored.uploads(self._objects, site) for site in self._rules.sites}
        known = await references.read(self._metadata)
        for site, open_uploads in uploads.items():
            async with aclosing(stored.segments(self._objects, site, counts, with_brokers=True)) as found:
                async for one in found:
                    one.uploads = open_uploads.pop(one.keys, [])
                    committed = known.committed.get(one.segment_id)
                    if committed is not None and one.place in committed.places:
                        listing.committed[one.segment_id, one.place] = one.objects
                        beside = {kind: one.objects[kind] for kind in one.objects.keys() & {ObjectKind.DRAFT}}
                        if beside or one.uploads:
                            listing.uploads.append(StoredSegment(site.bucket, one.keys, beside, one.uploads))
                    elif not known.holds(one.segment_id, one.place):
                        listing.unreferenced.append(one)
            for where, left in open_uploads.items():
                if where.segment_id not in known.attempts and where.segment_id not in known.trash:
                    listing.uploads.append(StoredSegment(site.bucket, where, uploads=left))
        self._shared |= {one.place for one in known.committed.values() if one.foreign}
        summary = self._summary
        summary.segments, summary.objects, summary.others = counts.segments, counts.objects, counts.others
        summary.object_bytes = counts.object_bytes
        return known, listing

    async def _damage(
        self, segment_id: UUID, committed: Committed, place: tuple[str, str], objects: dict[ObjectKind, ObjectInfo]
    ) -> list[Finding]:
        """Return what a committed segment, or its copy, lacks. Objects that the listing lacks are requested by name."""
        finds = []
        what = "is committed" if place == committed.place else "has a copy there"
        for kind in KINDS:
            if committed.foreign and kind is ObjectKind.MANIFEST:
                continue
            key = committed.keys_in(place).of(kind)
            info = objects.get(kind) or await find(self._objects.at(place[0]), key)
            if info is None:
                reason = f"segment {segment_id} {what}, and its {kind.value} object is not in the bucket"
                finds.append(_alarm(Kind.MISSING, key, reason, committed))
            elif kind is ObjectKind.DATA and info.size_bytes != committed.object_bytes:
                reason = f"it has {info.size_bytes} bytes, the committed segment {committed.object_bytes}"
                finds.append(_alarm(Kind.WRONG_SIZE, key, reason, committed))
        if not finds:
            return []
        current = await catalog.load(self._metadata, committed.topic)  # retention may have removed it meanwhile
        known = next((one for one in current.segments if one.segment_id == segment_id), None)
        return finds if known is not None and place in {known.place, known.mirror} else []

    def _is_young(self, one: StoredSegment) -> bool:
        return self._rules.age_s(one.newest_ms, one.bucket) < self._rules.grace_s

    async def _classified(
        self, classifier: OrphanClassifier, one: StoredSegment
    ) -> tuple[StoredSegment, Classification]:
        if self._is_young(one) and (classifier.knows_topics or one.segment_id in self._rules.also):
            return one, Classification(Kind.YOUNG, "not older than the grace age")
        try:
            result = await classifier.classify(one)
        except BucketMissing:
            raise
        except NotFound:
            result = Classification(Kind.CHANGED, "it was deleted during the collection")
        if one.segment_id in self._rules.also and result.kind in ALARMS:
            result = result._replace(kind=Kind.NAMED, reason=f"named to be deleted, although {result.reason}")
        if result.kind is Kind.FOREIGN:
            self._shared.add(one.place)
        return one, result

    async def _note_shared_places(self, objects: Sequence[StoredSegment], uploads: Sequence[StoredSegment]) -> None:
        """Check whether young objects are another cluster's, in places with old uploads that could be so as well."""
        doubted = {one.place for one in uploads if not self._is_young(one)} - self._shared
        young = [one for one in objects if one.place in doubted and self._is_young(one)]
        pairs = [(one, info.key) for one in young for info in one.objects.values()]
        found = await each(pairs, lambda pair: find(self._objects.at(pair[0].bucket), pair[1]))
        for (one, _), info in zip(pairs, found, strict=True):
            if info is not None and foreign(info, self._cluster, self._deployment_id):
                self._shared.add(one.place)

    def _classified_upload(self, one: StoredSegment, after: References) -> tuple[StoredSegment, Classification]:
        committed = after.committed.get(one.segment_id)
        if self._is_young(one) and after.topics:
            return one, Classification(Kind.YOUNG, "not older than the grace age")
        if committed is not None:
            kind = Kind.LEFTOVER if one.objects else Kind.UPLOAD
            return one, Classification(kind, "left beside the finished object", committed.topic)
        if not after.topics:
            return one, Classification(Kind.UNKNOWN_TOPIC, "the metadata knows no topic at all")
        if one.place in self._shared:
            return one, Classification(Kind.FOREIGN, "others write here too, and uploads do not say whose they are")
        if any(upload.initiated_ms < self._marked_ms.get(one.place, 0) for upload in one.uploads):
            return one, Classification(Kind.FOREIGN, "it began before the place was marked as this deployment's")
        return one, Classification(Kind.UPLOAD, "nobody refers to it")

    async def _handled(self, classified: Sequence[tuple[StoredSegment, Classification]]) -> list[Finding]:
        """Delete the garbage of a batch, unless this is a dry run, and return the findings of all."""
        garbage = [(one, result) for one, result in classified if result.kind in GARBAGE]
        finds: list[Finding] = []
        for one, result in classified:
            if one.may_be_brokers and result.kind is Kind.FOREIGN:
                self._summary.others += len(one.objects)  # there may be as many as ledgers, and they need no action
            elif result.kind not in GARBAGE:
                finds += self._finds_of(one, result, Verdict.ALARM if result.kind in ALARMS else Verdict.KEEP)
            elif not self._rules.apply:
                finds += self._finds_of(one, result, Verdict.DELETE)
        if self._rules.apply and garbage:
            now = await references.read(self._metadata)
            for deleted in await each(garbage, lambda pair: self._delete(*pair, now)):
                finds += deleted
        return finds

    async def _delete(self, one: StoredSegment, result: Classification, now: References) -> list[Finding]:
        """Delete a segment's objects and abort its uploads, unless it has a reference now or an object has changed."""
        changed = result._replace(kind=Kind.CHANGED, reason="it is referred to now")
        held = one.segment_id in now.attempts
        if one.objects.keys() - {ObjectKind.DRAFT}:
            held = now.holds(one.segment_id, one.place)
        if held:
            return self._finds_of(one, changed, Verdict.KEEP)
        try:
            for info in one.objects.values():
                current = await find(self._objects.at(one.bucket), info.key)
                if current is None or not _same(info, current) or foreign(current, self._cluster, self._deployment_id):
                    changed = changed._replace(reason=f"{info.key} is not the object that was classified")
                    return self._finds_of(one, changed, Verdict.KEEP)
            if one.segment_id in now.committed and not await self._remove_copy(one, now.committed[one.segment_id]):
                return self._finds_of(one, changed._replace(reason="a copy is being made"), Verdict.KEEP)
            if one.segment_id not in now.committed:
                await self._remove(one)
        except BucketMissing:
            raise
        except OffloaderError as error:
            failed = result._replace(reason=f"{result.reason}; its deletion failed: {error}")
            return self._finds_of(one, failed, Verdict.FAILED)
        return self._finds_of(one, result, Verdict.DELETED)

    async def _remove_copy(self, one: StoredSegment, committed: Committed) -> bool:
        """Remove what a committed segment has left in a place; False if its topic's owner makes a copy meanwhile."""
        if not one.objects.keys() - {ObjectKind.DRAFT}:
            await self._remove(one)
            return True
        topic = committed.topic

        async def named() -> bool:
            current = await catalog.load(self._metadata, topic)
            known = next((it for it in current.segments if it.segment_id == one.segment_id), None)
            return known is not None and one.place in {known.place, known.mirror}

        async with self._removals[topic]:
            return await removed(
                self._metadata,
                topic,
                removal_of(one.segment_id, one.place, self._clock.wall_ms()),
                broke_off=self._rules.broke_off,
                named=named,
                remove=partial(self._remove, one),
            )

    async def _remove(self, one: StoredSegment) -> None:
        store = self._objects.at(one.bucket)
        for upload in one.uploads:
            await store.abort_upload(upload.key, upload.upload_id)
        if one.objects:
            await store.delete([info.key for info in one.objects.values()])

    def _finds_of(self, one: StoredSegment, result: Classification, verdict: Verdict) -> list[Finding]:
        about = Finding(key="", kind=result.kind, verdict=verdict, reason=result.reason, topic=result.topic)
        age_s, infos = partial(self._rules.age_s, bucket=one.bucket), one.objects.values()
        finds = [replace(about, key=it.key, size_bytes=it.size_bytes, age_s=age_s(it.modified_ms)) for it in infos]
        uploads = [(it.key, it.upload_id, age_s(it.initiated_ms)) for it in one.uploads]
        return finds + [replace(about, key=key, upload_id=number, age_s=age) for key, number, age in uploads]


def _alarm(kind: Kind, key: str, reason: str, committed: Committed) -> Finding:
    return Finding(key=key, kind=kind, verdict=Verdict.ALARM, reason=reason, topic=committed.topic)


def _same(listed: ObjectInfo, now: ObjectInfo) -> bool:
    """Whether an object is the one that was listed. The times of a listing and of HEAD differ in precision."""
    return (listed.etag, listed.size_bytes) == (now.etag, now.size_bytes)


def _batches(items: Sequence[StoredSegment]) -> Iterator[Sequence[StoredSegment]]:
    for first in range(0, len(items), BATCH):
        yield items[first : first + BATCH]
