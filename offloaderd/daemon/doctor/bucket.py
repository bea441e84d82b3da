"""Checks of the object store: every operation of the daemon once, on objects of the probe.

The objects have keys below `<prefix>offloaderd-doctor/<id>/`, which no segment has, and are always deleted.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace

from offloaderd.core.errors import CorruptData, Denied, InvalidInput, OffloaderError, Transient
from offloaderd.daemon.doctor.finding import Case, CheckResult, Finding, Reading, fail, ok, skipped, unknown, warn
from offloaderd.objects import marker
from offloaderd.objects.buckets import BucketStore
from offloaderd.objects.life_cycle import DAY_S, LifeCycle, covers, harms, keeps_versions
from offloaderd.objects.opening import bucket_store
from offloaderd.objects.port import ObjectReader
from offloaderd.objects.stored_as import TAGS_HINT, StoredAs, TagsRefused, filled_tags, tag_pairs
from offloaderd.upkeep.gc import lost_metadata
from offloaderd.upkeep.stored import Site

FOLDER = "offloaderd-doctor"
HTTP_DATE_GRAIN_MS = 1000


async def bucket_checks(case: Case) -> AsyncGenerator[CheckResult, None]:
    """Check the object store in each place of the settings."""
    for there, where in _each_place(case):
        async with aclosing(_place_checks(there, where)) as results:
            async for result in results:
                yield result


def _each_place(case: Case) -> Iterator[tuple[Case, str]]:
    """Yield the case of each place alone, and the end of the names of its checks."""
    for number, (place, alone) in enumerate(case.settings.objects.each_place()):
        where = f" of {place.bucket or alone.directory}/{place.prefix}" if number else ""
        yield replace(case, settings=case.settings.model_copy(update={"objects": alone})), where


async def _place_checks(case: Case, where: str) -> AsyncGenerator[CheckResult, None]:
    """Check one place; `where` ends the name of each check."""
    store = bucket_store(case.settings.objects, case.clock)
    probe = BucketProbe(case, store)
    checks: tuple[tuple[str, Callable[[], Awaitable[Finding]]], ...] = (
        ("bucket write", probe.write),
        ("bucket read", probe.read),
        ("bucket list", probe.listing),
        ("bucket multipart", probe.multipart),
        ("bucket abort", probe.abort),
    )
    async with AsyncExitStack() as stack:
        reached = await case.check(f"bucket{where}", _reached(stack, store))
        yield reached
        if reached.failed:
            for name in (*(name for name, _ in checks), "bucket delete"):
                yield skipped(f"{name}{where}", "the bucket cannot be used")
            return
        try:
            if case.knows_topics is False:
                yield await case.check(f"bucket segments{where}", segments(case, store))
            if case.deployment_id:
                yield await case.check(f"bucket owner{where}", owner(case, store))
            if isinstance(store, LifeCycle):
                yield await case.check(f"bucket life cycle{where}", life_cycle(case, store))
                yield await case.check(f"bucket versions{where}", versions(case, store))
            for name, work in checks:
                yield await case.check(f"{name}{where}", work())
        finally:
            cleared = await case.check(f"bucket delete{where}", probe.clear())
        yield cleared


async def reading_checks(case: Case) -> AsyncGenerator[CheckResult, None]:
    """Check what a daemon that only reads does in each place; nothing is written."""
    for there, where in _each_place(case):
        async with AsyncExitStack() as stack:
            store = bucket_store(there.settings.objects, case.clock)
            reached = await case.check(f"bucket{where}", _reached(stack, store))
            yield reached
            if reached.failed:
                yield skipped(f"bucket read{where}", "the bucket cannot be used")
            else:
                yield await case.check(f"bucket read{where}", readable(there, store))


async def readable(case: Case, store: BucketStore) -> Finding:
    """List the first keys, and read from a segment of this cluster."""
    objects, cluster = case.settings.objects, case.settings.daemon.cluster
    site = Site(cluster=cluster, bucket=objects.bucket, prefix=objects.prefix)
    key = await lost_metadata.first_segment(store, [site])
    if not key:
        return warn(
            f"no segment of cluster {cluster!r} among the first keys",
            "daemon.cluster is the name of the cluster that offloaded, objects.prefix where",
        )
    await store.get(key, 0, 1)
    return ok(f"segments of cluster {cluster!r}, as {key}")


async def segments(case: Case, store: BucketStore) -> Finding:
    """Check that there are no segments of this cluster, since its metadata have no topic."""
    objects = case.settings.objects
    site = Site(cluster=case.settings.daemon.cluster, bucket=objects.bucket, prefix=objects.prefix)
    key = await lost_metadata.first_segment(store, [site])
    if key:
        return fail(f"{lost_metadata.LOST}, as {key}", lost_metadata.WHAT_TO_DO)
    return ok("none of this cluster among the first keys, and no topic: nothing was offloaded yet")


async def owner(case: Case, store: ObjectReader) -> Finding:
    """Check that the marker of a place names the deployment of `case`."""
    cluster, prefix = case.settings.daemon.cluster, case.settings.objects.prefix
    try:
        found = await marker.read(store, prefix, cluster)
    except CorruptData as error:
        return warn(f"the marker of this place cannot be read: {error}", marker.HINT)
    if found is None:
        return ok("no deployment has marked this place yet")
    if other := found.other_than(case.deployment_id):
        return fail(other, marker.HINT)
    return ok(f"marked by daemon {found.marker.daemon_id} of this deployment")


async def life_cycle(case: Case, store: LifeCycle) -> Finding:
    """Check that no rule of the bucket deletes or archives segments, or ends uploads of open ones."""
    settings = case.settings
    objects, offload = settings.objects, settings.offload
    try:
        rules = await store.life_cycle_rules()
    except (Denied, InvalidInput, Transient) as error:
        return unknown(
            f"whether a rule deletes or archives segments is not known: {error.message}",
            error.hint or "look at the bucket's life-cycle rules yourself",
        )
    found = list(
        harms(
            rules,
            prefix=objects.prefix,
            service=objects.service,
            tags=dict(tag_pairs(objects.tags)),
            open_s_max=max(case.open_s_max, offload.segment_age_max_s, offload.segment_age_min_s),
        )
    )
    told = "; ".join(f"rule {one.rule!r} {one.does}" for one in found)
    if any(one.certain for one in found):
        return fail(
            told,
            f"give the rule a prefix other than {objects.prefix!r}, or remove what it does: segments are deleted by "
            "policies (retention) alone, and have to be readable at once",
        )
    if found:
        return warn(f"{told}, where they have its tags", "see that no policy sets these tags, or change the rule")
    moved = sorted({one for rule in rules for one in rule.moves if covers(rule.prefix, objects.prefix)})
    return ok(f"{len(rules)} rules, none harms segments" + (f"; they are moved to {', '.join(moved)}" if moved else ""))


async def versions(case: Case, store: LifeCycle) -> Finding:
    """Check whether segments can be deleted, and whether they stay then as old versions, and are paid for."""
    try:
        found = await store.versioning()
        rules = await store.life_cycle_rules() if found.enabled or found.suspended else []
    except (Denied, InvalidInput, Transient) as error:
        return unknown(
            f"whether deleted segments stay as old versions is not known: {error.message}",
            error.hint or "look at the bucket's versioning yourself",
        )
    if found.locked:
        return fail(
            f"{found.locked} refuses deletions: no segment can be committed, as the parts of its upload are deleted "
            "then, and none at the end of its retention",
            "remove it from the bucket, or store in another one",
        )
    if found.soft_delete_s:
        return warn(
            f"soft delete is on: what is deleted is kept for {found.soft_delete_s / DAY_S:.3g} days and paid for, the "
            "parts of each upload as well",
            "switch it off for this bucket (gcloud storage buckets update gs://BUCKET --clear-soft-delete)",
        )
    if not (found.enabled or found.suspended):
        return ok("off: what is deleted is gone")
    state = "on" if found.enabled else "suspended, with what was kept before"
    if keeps_versions(rules, case.settings.objects.prefix):
        return warn(
            f"{state}: segments that were deleted stay as old versions, and are paid for",
            "have a life-cycle rule end old versions (NoncurrentVersionExpiration) after some days",
        )
    return ok(f"{state}, and a rule ends old versions")


class BucketProbe:
    """The checks of one store, and the objects that they have created."""

    def __init__(self, case: Case, store: BucketStore) -> None:
        self._case = case
        self._store = store
        self._folder = f"{case.settings.objects.prefix}{FOLDER}/{case.clock.uuid()}/"
        self._small, self._large = f"{self._folder}small", f"{self._folder}large"
        self._content = bytes(range(256)) * 4
        self._made: set[str] = set()
        self._uploads: dict[str, str] = {}

    async def write(self) -> Finding:
        """Store an object with metadata; its time is the store's clock."""
        clock, before_ms = self._case.clock, self._case.clock.wall_ms()
        self._made.add(self._small)
        objects = self._case.settings.objects
        tags = filled_tags(objects.tags, tenant=FOLDER, namespace=FOLDER, cluster=self._case.settings.daemon.cluster)
        stored_as = StoredAs(objects.storage_class, tags)
        info = await self._store.put(self._small, self._content, metadata={"role": FOLDER}, stored_as=stored_as)
        if info.modified_ms and self._store.has_clock:
            reading = Reading(info.modified_ms, before_ms, clock.wall_ms(), HTTP_DATE_GRAIN_MS)
            self._case.readings["the object store"] = reading
        head = await self._store.head(self._small)
        if (head.size_bytes, head.metadata.get("role")) != (len(self._content), FOLDER):
            return fail(
                f"HEAD of {self._small} says {head.size_bytes} bytes and {dict(head.metadata)}, but "
                f"{len(self._content)} bytes were stored with role = {FOLDER}",
                "this store loses object metadata, which Pulsar's readers need: look for a proxy that drops "
                "x-amz-meta headers",
            )
        if isinstance(self._store, TagsRefused) and (refused := self._store.tags_refused):
            return warn(f"objects.tags are not set, as the store refuses them: {refused}", TAGS_HINT)
        described = f", class {objects.storage_class}" if objects.storage_class else ""
        described += f", tags {', '.join(tags)}" if tags else ""
        return ok(f"stored {len(self._content)} bytes with metadata as {self._small}{described}")

    async def read(self) -> Finding:
        """Read the object whole, and a range of it."""
        whole = await self._store.get(self._small)
        part = await self._store.get(self._small, 100, 50)
        if whole != self._content or part != self._content[100:150]:
            return fail(
                f"{self._small} came back as {len(whole)} bytes, its range 100 to 149 as {len(part)}, not as stored",
                "look for a proxy or cache in front of the store that changes bodies or ignores Range",
            )
        return ok("whole and by range, as it was stored")

    async def listing(self) -> Finding:
        """Find the object by its prefix."""
        found = await self._keys()
        if found != [self._small]:
            return fail(
                f"listing {self._folder} shows {found}, not the object that was stored a moment ago",
                "segments and rubbish are found by listing: this store must list what it has acknowledged",
            )
        return ok("by prefix, at once")

    async def multipart(self) -> Finding:
        """Store an object in two parts and read across their border."""
        second = self._content
        first = second * max(1, self._store.parts.bytes_min // len(second))
        self._made.add(self._large)
        upload_id = self._uploads[self._large] = await self._store.create_upload(self._large, metadata={"role": FOLDER})
        parts = [
            await self._store.upload_part(self._large, upload_id, number, [data])
            for number, data in ((1, first), (2, second))
        ]
        listed = await self._store.list_parts(self._large, upload_id)
        if [(part.part_number, part.etag, part.size_bytes) for part in listed] != [
            (part.part_number, part.etag, part.size_bytes) for part in parts
        ]:
            return fail(
                f"the parts of an upload of 2 are listed as {[part.part_number for part in listed]}, or with other "
                "sizes or ETags than they were given",
                "recovery after a crash compares them: this store's ListParts cannot be relied on",
            )
        await self._store.complete_upload(self._large, upload_id, parts)
        del self._uploads[self._large]
        across = await self._store.get(self._large, len(first) - 10, 20)
        if across != first[-10:] + second[:10]:
            return fail(f"{self._large} differs from its two parts where they meet", "this store cannot be used")
        return ok(f"two parts, {len(first) + len(second)} bytes, listed and joined")

    async def abort(self) -> Finding:
        """Begin an upload, find it among the open ones, and abort it."""
        key = f"{self._folder}aborted"
        upload_id = self._uploads[key] = await self._store.create_upload(key)
        await self._store.upload_part(key, upload_id, 1, [self._content])
        during, below = await self._open_uploads(key), await self._open_uploads(self._folder)
        await self._store.abort_upload(key, upload_id)
        del self._uploads[key]
        after = await self._open_uploads(key)
        if key not in during or key in after:
            return fail(
                f"an open upload is {'' if key in during else 'not '}listed while it is open, and "
                f"{'still ' if key in after else 'not '}after it was aborted",
                "uploads that a crash left behind are found by listing: this store would keep them for ever; set a "
                "life-cycle rule that ends incomplete uploads",
            )
        if key not in below:
            return warn(
                "an open upload is listed by its key, and not by the folder that it is in",
                "offloadctl gc finds no uploads without a reference: have the store end incomplete uploads, "
                "days later than offload.segment_age_max_s",
            )
        return ok("an upload was given up and is gone")

    async def clear(self) -> Finding:
        """Delete all objects and uploads of the probe; the finding names what could not be deleted."""
        try:
            for key, upload_id in self._uploads.items():
                await self._store.abort_upload(key, upload_id)
            await self._store.delete(sorted(self._made))
            left = await self._keys()
        except OffloaderError as error:
            return fail(error.message, f"{error.hint or 'see above'}; then delete {self._folder} by hand")
        if left:
            return fail(f"{left} is still listed after it was deleted", f"delete {self._folder} by hand")
        return ok("nothing is left of the probe")

    async def _keys(self) -> list[str]:
        async with aclosing(self._store.list(self._folder)) as found:
            return [info.key async for info in found]

    async def _open_uploads(self, prefix: str) -> set[str]:
        async with aclosing(self._store.list_uploads(prefix)) as found:
            return {upload.key async for upload in found}


async def _reached(stack: AsyncExitStack, store: BucketStore) -> Finding:
    await stack.enter_async_context(store)
    await store.check()
    return ok(str(store))
