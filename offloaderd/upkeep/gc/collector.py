"""Garbage collection: deletes objects and open uploads without a reference in the metadata of any topic of the cluster.

    list uploads, read references, list objects, read references -> classify -> each batch: read references, delete

It is safe without a record of its own, because ids are never used twice and an attempt is recorded before its first
byte. An object that was listed before the references were read, and is not among them, will never be referred to,
whatever runs beside. Deleting it late, twice, by two daemons or in part does no harm; the next collection finds the
rest. A trash record is needed only for segments with references. Three more rules: objects younger than the grace age
(by the store's clock) stay; objects of another cluster or program, and last copies of entries, stay (orphans.py); right
before its deletion an object must still be the one that was classified.

An open upload has no metadata that names its cluster. Where others write under the same prefix, uploads without objects
are reported and not aborted. If another cluster's upload were aborted all the same, it would begin its segment again.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from offloaderd.core.aio.each import each
from offloaderd.core.clock import Clock
from offloaderd.core.errors import BucketMissing, Conflict, IdentityRefused, NotFound, OffloaderError
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata import identity
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects import keys, marker
from offloaderd.objects.keys import ObjectKind, SegmentKeys
from offloaderd.objects.port import ObjectInfo, SegmentStore, UploadInfo, find
from offloaderd.upkeep import stored
from offloaderd.upkeep.gc import references
from offloaderd.upkeep.gc.abandoned import AbandonedTrash, DisabledAttempts
from offloaderd.upkeep.gc.findings import ALARMS, RUBBISH, Find, Kind, Rules, Summary, Verdict
from offloaderd.upkeep.gc.orphans import Judgement, OrphanClassifier, foreign
from offloaderd.upkeep.gc.references import Committed, References
from offloaderd.upkeep.settings import GcSettings
from offloaderd.upkeep.stored import KINDS, Counts, Site, StoredSegment

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
        reader_grace_s: float = 0.0,
    ) -> None:
        """Collect in `sites`; without a `source` no entry can be read again that is not offloaded.

        Readers may use for `reader_grace_s` what has left a topic.
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
                reader_grace_s=self._reader_grace_s,
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


BATCH = 64
"""Segments that are judged and deleted after one look at the metadata."""


@dataclass(slots=True)
class _Listing:
    """What the buckets had, by what the first look at the metadata knew of it."""

    committed: dict[UUID, dict[ObjectKind, ObjectInfo]] = field(default_factory=dict)
    strangers: list[StoredSegment] = field(default_factory=list)
    uploads: list[StoredSegment] = field(default_factory=list)
    """Those without objects of their own, or of committed segments; their objects are left out, but for drafts."""


class Collection:
    """One run over everything. `summary` is filled with how much was looked at."""

    def __init__(self, objects: SegmentStore, metadata: MetadataStore, rules: Rules, summary: Summary) -> None:
        self._objects = objects
        self._metadata = metadata
        self._rules = rules
        self._cluster = rules.sites[0].cluster
        self._places = {(site.bucket, site.prefix) for site in rules.sites}
        self._summary = summary
        self._shared: set[tuple[str, str]] = set()
        self._deployment_id = ""
        self._marked_ms: dict[tuple[str, str], int] = {}
        """Since when places are this deployment's, by the store's clock."""

    async def finds(self) -> AsyncGenerator[Find, None]:
        """Yield every find: damages first, then what nobody refers to, then what an owner should have deleted."""
        await self._check_places()
        known, listing = await self._list()
        after = await references.look(self._metadata)
        self._summary.topics = len(after.topics)
        broken: set[UUID] = set()
        for segment_id, committed in known.committed.items():
            if not self._is_here(committed):
                broken.add(segment_id)  # or not: nobody has looked
            elif segment_id in after.committed:
                for find in await self._damages(segment_id, committed, listing.committed.get(segment_id, {})):
                    broken.add(segment_id)
                    yield find
        classifier = OrphanClassifier(
            self._objects,
            self._metadata,
            after,
            cluster=self._cluster,
            deployment_id=self._deployment_id,
            broken=broken,
        )
        for batch in _batches([one for one in listing.strangers if one.segment_id not in after]):
            for find in await self._dealt_with(await each(batch, lambda one: self._judged(classifier, one))):
                yield find
        held = {*after.attempts, *after.trash}
        uploads = [one for one in listing.uploads if one.segment_id not in held]
        await self._look_for_others(listing.strangers, uploads)
        for batch in _batches(uploads):
            for find in await self._dealt_with([self._upload_judged(one, after) for one in batch]):
                yield find
        for kind in (AbandonedTrash, DisabledAttempts):
            unowned = kind(self._objects, self._metadata, self._rules)
            async with aclosing(unowned.finds(after, self._summary)) as left:
                async for find in left:
                    yield find

    async def _check_places(self) -> None:
        """Look whose the places are. Raises IdentityRefused where another deployment works in one."""
        ours = await identity.deployment(self._metadata)
        if ours is None:
            return  # no daemon of a version that makes one has worked here yet
        self._deployment_id = str(ours.deployment_id)
        for site in self._rules.sites:
            found = await marker.read(self._objects.at(site.bucket), site.prefix, site.cluster)
            if found is None:
                self._marked_ms[site.bucket, site.prefix] = self._rules.now_ms
                continue
            if whose := found.other_than(self._deployment_id):
                raise IdentityRefused(
                    f"nothing is collected below {site.prefix!r} in bucket {site.bucket!r}: {whose}",
                    hint=marker.HINT,
                )
            self._marked_ms[site.bucket, site.prefix] = found.stored_ms
            others = await marker.guests(self._objects.at(site.bucket), site.prefix, site.cluster)
            if others.keys() - {self._deployment_id}:
                self._shared.add((site.bucket, site.prefix))

    async def _list(self) -> tuple[References, _Listing]:
        """Look at the metadata and list the buckets; what is committed or being written needs no second thought."""
        listing, counts = _Listing(), Counts()
        uploads = {site: await stored.uploads(self._objects, site) for site in self._rules.sites}
        known = await references.look(self._metadata)
        for site, open_uploads in uploads.items():
            await self._list_site(site, open_uploads, known, listing, counts)
        self._shared |= {one.place for one in known.committed.values() if one.foreign}
        summary = self._summary
        summary.segments, summary.objects, summary.others = counts.segments, counts.objects, counts.others
        summary.object_bytes = counts.object_bytes
        return known, listing

    async def _list_site(
        self,
        site: Site,
        uploads: dict[SegmentKeys, list[UploadInfo]],
        known: References,
        listing: _Listing,
        counts: Counts,
    ) -> None:
        """List one place, whose open `uploads` are known from before the first look at the metadata."""
        async with aclosing(stored.segments(self._objects, site, counts, with_brokers=True)) as found:
            async for one in found:
                one.uploads = uploads.pop(one.keys, [])
                if one.segment_id in known.committed:
                    listing.committed[one.segment_id] = one.objects
                    beside = {kind: one.objects[kind] for kind in one.objects.keys() & {ObjectKind.DRAFT}}
                    if beside or one.uploads:
                        listing.uploads.append(StoredSegment(site.bucket, one.keys, beside, one.uploads))
                elif one.segment_id not in known:
                    listing.strangers.append(one)
        for where, left in uploads.items():
            if where.segment_id not in known.attempts and where.segment_id not in known.trash:
                listing.uploads.append(StoredSegment(site.bucket, where, uploads=left))

    def _is_here(self, committed: Committed) -> bool:
        here = committed.place in self._places
        self._summary.elsewhere += not here
        return here

    async def _damages(
        self, segment_id: UUID, committed: Committed, objects: dict[ObjectKind, ObjectInfo]
    ) -> list[Find]:
        """Say what a committed segment lacks. What the listing does not show is asked for by name."""
        finds = []
        for kind in KINDS:
            if committed.foreign and kind is ObjectKind.MANIFEST:
                continue
            key = committed.keys.of(kind)
            info = objects.get(kind) or await find(self._objects.at(committed.bucket), key)
            if info is None:
                reason = f"segment {segment_id} is committed, and its {kind.value} object is not in the bucket"
                finds.append(_alarm(Kind.MISSING, key, reason, committed))
            elif kind is ObjectKind.DATA and info.size_bytes != committed.object_bytes:
                reason = f"it has {info.size_bytes} bytes, the committed segment {committed.object_bytes}"
                finds.append(_alarm(Kind.WRONG_SIZE, key, reason, committed))
        if finds and await self._is_committed(segment_id, committed):
            return finds
        return []

    async def _is_committed(self, segment_id: UUID, committed: Committed) -> bool:
        """Whether it is in its topic's map still: its retention may have ended since the last look."""
        current = await catalog.load(self._metadata, committed.topic)
        return any(one.segment_id == segment_id for one in current.segments)

    def _is_young(self, one: StoredSegment) -> bool:
        return self._rules.age_s(one.newest_ms) < self._rules.grace_s

    async def _judged(self, classifier: OrphanClassifier, one: StoredSegment) -> tuple[StoredSegment, Judgement]:
        if self._is_young(one) and (classifier.knows_topics or one.segment_id in self._rules.also):
            return one, Judgement(Kind.YOUNG, "not older than the grace age")
        try:
            judgement = await classifier.classifier(one)
        except BucketMissing:
            raise
        except NotFound:
            judgement = Judgement(Kind.CHANGED, "it vanished while it was looked at")
        if one.segment_id in self._rules.also and judgement.kind in ALARMS:
            judgement = judgement._replace(kind=Kind.NAMED, reason=f"named to be deleted, although {judgement.reason}")
        if judgement.kind is Kind.FOREIGN:
            self._shared.add(one.place)
        return one, judgement

    def _is_brokers(self, one: StoredSegment, judgement: Judgement) -> bool:
        """Say whether a broker wrote a ledger's object; of these there may be as many as ledgers, and nothing to do."""
        brokers = one.may_be_brokers and judgement.kind is Kind.FOREIGN
        self._summary.others += len(one.objects) if brokers else 0
        return brokers

    async def _look_for_others(self, strangers: Sequence[StoredSegment], uploads: Sequence[StoredSegment]) -> None:
        """Find out whether young objects are another cluster's, if there are old uploads that could be as well."""
        doubted = {one.place for one in uploads if not self._is_young(one)} - self._shared
        young = [one for one in strangers if one.place in doubted and self._is_young(one)]
        pairs = [(one, info.key) for one in young for info in one.objects.values()]
        found = await each(pairs, lambda pair: find(self._objects.at(pair[0].bucket), pair[1]))
        for (one, _), info in zip(pairs, found, strict=True):
            if info is not None and foreign(info, self._cluster, self._deployment_id):
                self._shared.add(one.place)

    def _upload_judged(self, one: StoredSegment, after: References) -> tuple[StoredSegment, Judgement]:
        committed = after.committed.get(one.segment_id)
        if self._is_young(one) and after.topics:
            return one, Judgement(Kind.YOUNG, "not older than the grace age")
        if committed is not None:
            kind = Kind.LEFTOVER if one.objects else Kind.UPLOAD
            return one, Judgement(kind, "left beside the finished object", committed.topic)
        if not after.topics:
            return one, Judgement(Kind.UNKNOWN_TOPIC, "the metadata knows no topic at all")
        if one.place in self._shared:
            return one, Judgement(Kind.FOREIGN, "others write here too, and uploads do not say whose they are")
        if any(upload.initiated_ms < self._marked_ms.get(one.place, 0) for upload in one.uploads):
            return one, Judgement(Kind.FOREIGN, "it began before the place was marked as this deployment's")
        return one, Judgement(Kind.UPLOAD, "nobody refers to it")

    async def _dealt_with(self, judged: Sequence[tuple[StoredSegment, Judgement]]) -> list[Find]:
        """Delete of a batch what is rubbish, if this is no dry run, and return the finds of all."""
        doomed = [(one, judgement) for one, judgement in judged if judgement.kind in RUBBISH]
        finds = [
            find
            for one, judgement in judged
            if (judgement.kind not in RUBBISH or not self._rules.apply) and not self._is_brokers(one, judgement)
            for find in self._finds_of(one, judgement, _verdict(judgement.kind))
        ]
        if self._rules.apply and doomed:
            now = await references.look(self._metadata)
            for deleted in await each(doomed, lambda pair: self._delete(*pair, now)):
                finds += deleted
        return finds

    async def _delete(self, one: StoredSegment, judgement: Judgement, now: References) -> list[Find]:
        """Delete one segment's objects and abort its uploads, if nobody refers to it now and nothing has changed."""
        held = one.segment_id in now if one.objects.keys() - {ObjectKind.DRAFT} else one.segment_id in now.attempts
        if held:
            return self._finds_of(one, Judgement(Kind.CHANGED, "it is referred to now", judgement.topic), Verdict.KEEP)
        try:
            for info in one.objects.values():
                current = await find(self._objects.at(one.bucket), info.key)
                if current is None or not _same(info, current) or foreign(current, self._cluster, self._deployment_id):
                    changed = Judgement(Kind.CHANGED, f"{info.key} is not the object that was judged", judgement.topic)
                    return self._finds_of(one, changed, Verdict.KEEP)
            await self._remove(one)
        except BucketMissing:
            raise
        except OffloaderError as error:
            failed = judgement._replace(reason=f"{judgement.reason}; its deletion failed: {error}")
            return self._finds_of(one, failed, Verdict.FAILED)
        return self._finds_of(one, judgement, Verdict.DELETED)

    async def _remove(self, one: StoredSegment) -> None:
        store = self._objects.at(one.bucket)
        for upload in one.uploads:
            await store.abort_upload(upload.key, upload.upload_id)
        if one.objects:
            await store.delete([info.key for info in one.objects.values()])

    def _finds_of(self, one: StoredSegment, judgement: Judgement, verdict: Verdict) -> list[Find]:
        """Return a find for each object and upload of a segment."""
        objects = [(info.key, info.size_bytes, info.modified_ms, "") for info in one.objects.values()]
        uploads = [(upload.key, 0, upload.initiated_ms, upload.upload_id) for upload in one.uploads]
        return [
            Find(
                key=key,
                kind=judgement.kind,
                verdict=verdict,
                reason=judgement.reason,
                size_bytes=size_bytes,
                age_s=self._rules.age_s(stored_ms),
                upload_id=upload_id,
                topic=judgement.topic,
            )
            for key, size_bytes, stored_ms, upload_id in objects + uploads
        ]


def _verdict(kind: Kind) -> Verdict:
    """Return what becomes of a find that is not deleted now."""
    if kind in RUBBISH:
        return Verdict.DELETE
    return Verdict.ALARM if kind in ALARMS else Verdict.KEEP


def _alarm(kind: Kind, key: str, reason: str, committed: Committed) -> Find:
    return Find(key=key, kind=kind, verdict=Verdict.ALARM, reason=reason, topic=committed.topic)


def _same(listed: ObjectInfo, now: ObjectInfo) -> bool:
    """Whether an object is the one that was listed; times of a listing and of HEAD differ in precision."""
    return (listed.etag, listed.size_bytes) == (now.etag, now.size_bytes)


def _batches(items: Sequence[StoredSegment]) -> Iterator[Sequence[StoredSegment]]:
    for first in range(0, len(items), BATCH):
        yield items[first : first + BATCH]
