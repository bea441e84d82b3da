"""Verification of a ledger's copy in the bucket, before its source may delete it (P3).

No earlier result counts. Sizes come from the store. Manifest and index are read and must agree with each other and with
the map. On request every block is read and its checksum compared. The segments must hold all entries of the ledger
without a gap, and join the segments before and behind.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise

import google_crc32c

from offloaderd.core.aio import Group
from offloaderd.core.errors import BucketMissing, CorruptData, NotFound, Unsound, first_of
from offloaderd.core.model import MirrorRequired, lost_up_to
from offloaderd.format import manifest_bytes
from offloaderd.format.manifest import SegmentManifest
from offloaderd.format.verify import BlockRun, check_index, runs
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records.grant import GrantedObject, GrantedSegment
from offloaderd.metadata.topic_map.conversion import holders_of
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.mirroring import target
from offloaderd.objects.port import ObjectReader, find
from offloaderd.objects.whole import read_apart, sure
from offloaderd.policy.policies import OffloadPolicies, place_named
from offloaderd.segment.context import OffloadContext


def segments_of(topic_map: TopicMap, ledger_id: int) -> list[CommittedSegment]:
    """Return the segments that hold the whole ledger and join their neighbours, in order. Raises Unsound."""
    holding = holding_all(topic_map, ledger_id)
    _check_joints(topic_map, holding)
    return holding


def holding_all(topic_map: TopicMap, ledger_id: int, first_entry_id: int = 0) -> list[CommittedSegment]:
    """Return the segments that hold a ledger from an entry on; neighbours do not count. Raises Unsound."""
    end = topic_map.ends.get(ledger_id)
    holding = [*holders_of(topic_map, ledger_id)]
    known = bool(holding) or ledger_id in topic_map.contexts  # a map that is made of a bucket alone has no contexts
    if end is None or not known or ledger_id in topic_map.deleted:
        raise Unsound("not_offloaded", f"ledger {ledger_id} is not offloaded to its end, or is marked deleted")
    expected = first_entry_id
    for segment in holding:
        part = next(part for part in segment.slices if part.ledger_id == ledger_id)
        if part.first_entry_id != expected:
            raise Unsound(
                "gap", f"entries {expected} to {part.first_entry_id - 1} of ledger {ledger_id} are in no segment"
            )
        expected = part.last_entry_id + 1
    if expected != end.entries:
        raise Unsound("gap", f"the segments hold {expected} of {end.entries} entries of ledger {ledger_id}")
    return holding


def awaited_copy(holding: Iterable[CommittedSegment], policy: OffloadPolicies) -> str:
    """Return why these segments may not be granted before the mirror has them; empty if the policy demands no mirror.

    What a broker wrote never has a copy, so with such a policy it is never granted. Nor has a segment whose own place
    is named as the mirror, by levels that do not know of each other.
    """
    if policy.mirror_required is not MirrorRequired.YES:
        return ""
    mirror = place_named(policy.mirror or "")
    if mirror is None:
        return "the policy demands a mirror (mirror_required) and names none"
    own = policy.bucket or "", policy.prefix or ""
    for one in holding:
        if one.foreign:
            return f"{one.segment_id} is a broker's own object and cannot have the copy that mirror_required demands"
        if one.mirror is None or target(one, own, mirror) is not None:
            place = "/".join(mirror)
            return f"segment {one.segment_id} has no copy in the mirror {place} yet, which mirror_required demands"
    return ""


def demanded_copies(holding: Iterable[CommittedSegment], policy: OffloadPolicies) -> list[CommittedSegment]:
    """Return the copies of segments as they lie in the mirror, if the policy demands them."""
    if policy.mirror_required is not MirrorRequired.YES:
        return []
    return [copy for one in holding if (copy := one.copy) is not None]


def _check_joints(topic_map: TopicMap, holding: Sequence[CommittedSegment]) -> None:
    """Raise Unsound unless the segments follow each other, and join those before and behind."""
    at = bisect_left(topic_map.segments, holding[0].begin, key=lambda one: one.begin)
    around = topic_map.segments[max(0, at - 1) : at + len(holding) + 1]
    plan = topic_map.unfinished
    for before, after in pairwise(around):
        if plan is not None and before.end < plan.live_begin <= after.begin:
            continue  # history is still to come there
        if lost_up_to(topic_map.losses, before.end, after.begin) == after.begin:
            continue
        if after.begin.ledger_id == before.end.ledger_id:
            joined = after.begin.entry_id == before.end.entry_id + 1
        else:
            end = topic_map.ends.get(before.end.ledger_id)
            joined = after.begin.entry_id == 0 and end is not None and end.entries == before.end.entry_id + 1
        if not joined:
            raise Unsound("gap", f"nobody can say that nothing is missing between {before.end} and {after.begin}")


def _granted(segment: CommittedSegment, ledger_id: int, objects: tuple[GrantedObject, ...]) -> GrantedSegment:
    part = next(part for part in segment.slices if part.ledger_id == ledger_id)
    return GrantedSegment(
        segment_id=segment.segment_id,
        first_entry_id=part.first_entry_id,
        last_entry_id=part.last_entry_id,
        objects=objects,
    )


class CopyChecker:
    """Checks the objects of segments."""

    def __init__(self, context: OffloadContext, *, readback: bool, chunk_bytes: int = 8 << 20) -> None:
        self._context = context
        self._upload_context = context.upload_context
        self.readback = readback
        self._chunk_bytes = chunk_bytes

    async def check(self, topic_map: TopicMap, segment: CommittedSegment, ledger_id: int) -> GrantedSegment:
        """Return the objects of a sound segment. Raises Unsound; Transient, Denied when the store does not answer."""
        if segment.foreign:
            said = f"ledger {ledger_id} was offloaded by a broker ({segment.driver}): its own deletion lag decides"
            raise Unsound("foreign", said)
        if segment.bucket not in self._context.places.buckets:
            raise Unsound(
                "bucket", f"segment {segment.segment_id} is in bucket {segment.bucket!r}, not in one of this daemon's"
            )
        try:
            found = await self._objects(topic_map, segment)
        except BucketMissing:
            raise
        except NotFound as error:
            raise Unsound("missing_object", f"an object of segment {segment.segment_id} is missing: {error}") from error
        except CorruptData as error:
            raise Unsound("corrupt", str(error)) from error
        return _granted(segment, ledger_id, found)

    async def seen(self, segment: CommittedSegment, ledger_id: int) -> GrantedSegment | None:
        """Return a segment's objects as the store lists them, without reading any; None when one is missing."""
        store, found = self._upload_context.objects.at(segment.bucket), []
        for key in segment.keys.all:
            info = await find(store, key)
            if info is None:
                return None
            found.append(GrantedObject(key=key, size_bytes=info.size_bytes, crc32c=None, etag=info.etag))
        return _granted(segment, ledger_id, tuple(found))

    async def _objects(self, topic_map: TopicMap, segment: CommittedSegment) -> tuple[GrantedObject, ...]:
        data_key, index_key, manifest_key = segment.keys.all
        store = self._upload_context.objects.at(segment.bucket)
        gets = [partial(store.get, key, 0) for key in (index_key, manifest_key)]
        decode = partial(self._tables, topic_map, segment)
        try:
            async with Group() as group:
                heads = [group.create_task(store.head(key), name=f"head {key}") for key in segment.keys.all]
                tables = group.create_task(sure(lambda: read_apart(decode, *gets)), name=f"get {manifest_key}")
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None
        (info, *infos), (described, found) = [head.result() for head in heads], tables.result()
        if info.size_bytes != segment.object_bytes:
            raise Unsound("size", f"{data_key} holds {info.size_bytes} bytes, not {segment.object_bytes}")
        self._upload_context.metrics.grant_checked_bytes.inc(sum(size_bytes for size_bytes, _ in found))
        crc32c = await self._read_data(store, data_key, described) if self.readback else None
        data = GrantedObject(key=data_key, size_bytes=info.size_bytes, crc32c=crc32c, etag=info.etag)
        index, of_manifest = (
            GrantedObject(key=key, size_bytes=size_bytes, crc32c=told, etag=one.etag)
            for key, one, (size_bytes, told) in zip((index_key, manifest_key), infos, found, strict=True)
        )
        return data, index, of_manifest

    def _tables(
        self, topic_map: TopicMap, segment: CommittedSegment, index: bytes, encoded: bytes
    ) -> tuple[SegmentManifest, list[tuple[int, int]]]:
        """Return a segment's manifest, and size and checksum of index and manifest. Raises CorruptData."""
        _, index_key, manifest_key = segment.keys.all
        described = manifest_bytes.decode(encoded, key=manifest_key, data_bytes=segment.object_bytes)
        segment.check_manifest(described, managed_ledger=topic_map.topic.managed_ledger, cluster=self._context.cluster)
        check_index(index, described, key=index_key)
        return described, [(len(one), google_crc32c.value(one)) for one in (index, encoded)]

    async def _read_data(self, store: ObjectReader, key: str, described: SegmentManifest) -> int:
        """Read and check all blocks; return the checksum of the whole object. Raises CorruptData."""
        crc32c = 0
        if described.preamble_bytes:
            crc32c = google_crc32c.value(await store.get(key, 0, described.preamble_bytes))
        for run in runs(described.blocks, self._chunk_bytes):
            async with self._upload_context.budget.held(run.length):
                crc32c = await sure(partial(self._read_piece, store, key, run, described, crc32c))
            self._upload_context.metrics.grant_checked_bytes.inc(run.length)
        return crc32c

    async def _read_piece(
        self, store: ObjectReader, key: str, run: BlockRun, described: SegmentManifest, crc32c: int
    ) -> int:
        """Read neighbouring blocks; return the checksum up to their end. Raises CorruptData."""
        data = await store.get(key, run.offset, run.length)
        run.decoded(data, key=key, method=described.method)
        return int(google_crc32c.extend(crc32c, data))
