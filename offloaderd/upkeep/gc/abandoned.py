"""Garbage of topics without an owner: decided deletions, and open segments of disabled topics."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import structlog

from offloaderd.core.errors import BucketMissing, Conflict, CorruptData, NotFound, OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.identity import deletion_refused
from offloaderd.metadata.port import Check, Create, Delete, MetadataStore, Replace, Step, Versioned
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records import copy as copy_record
from offloaderd.metadata.records import deletion, ownership
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.last_copy import last_copy
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.mirroring import given_up
from offloaderd.metadata.topic_map.removal import holds
from offloaderd.objects.port import SegmentStore, find
from offloaderd.policy.records import decode_policy
from offloaderd.upkeep.copy_removal import removal_of, removed
from offloaderd.upkeep.gc.findings import Finding, Kind, Rules, Summary, Verdict
from offloaderd.upkeep.gc.references import References
from offloaderd.upkeep.stored import Site

log = structlog.get_logger(__name__)

DISABLED = "the topic is disabled, so its open segment will not be resumed"


class _Left(NamedTuple):
    """What is left of a segment in a place: the key of its data, sizes by key, and open uploads."""

    site: Site
    key: str
    sizes: Mapping[str, int]
    uploads: Sequence[str]


class Unowned:
    """Garbage of topics without an owner, handled unless this is a dry run.

    Trash is emptied: only segments on a topic's trash list are deleted, and never one of its map. An owner that comes
    meanwhile may delete the same objects without harm. Records of places that this daemon does not have stay.

    The deletion of open segments of disabled topics is decided here. An owner seals its segment before it releases a
    disabled topic. One that died before leaves the attempt, and no daemon claims the topic again. Such an attempt
    becomes a trash record, under a new epoch and in one transaction that compares what was read: an owner that comes
    meanwhile wins, a late one is fenced. The objects are deleted from the trash list, a grace age later. An attempt
    stays if the source no longer has all its entries, or in doubt.
    """

    def __init__(self, objects: SegmentStore, metadata: MetadataStore, rules: Rules) -> None:
        self._objects = objects
        self._metadata = metadata
        self._rules = rules

    async def trash(self, found: References, summary: Summary) -> AsyncGenerator[Finding, None]:
        """Yield the trash that is older than the grace age and the time for readers, of topics without an owner."""
        for topic, record in (*found.trash.values(), *found.copies.values()):
            sites = self._sites(record)
            if not sites:
                summary.elsewhere += 1
            elif not _named(record, found) and self._rules.age_s(record.decided_ms) >= self._stays_s(record):
                for find in await self._handle(topic, record, sites):
                    yield find

    def _stays_s(self, record: deletion.Trash) -> float:
        """Return how long after the decision the objects stay: for the grace age and for readers."""
        reader_grace_s = 0.0 if record.readable is False else self._rules.reader_grace_s
        return max(self._rules.grace_s, reader_grace_s)

    def _sites(self, record: deletion.Trash) -> list[Site]:
        """Return the sites of a record's objects and of their copy; none if one of them is another place."""
        sites = {(one.bucket, one.prefix): one for one in self._rules.sites}
        places = record.places((self._rules.sites[0].bucket, self._rules.sites[0].prefix))
        return [sites[one] for one in places] if sites.keys() >= set(places) else []

    async def _handle(self, topic: TopicName, record: deletion.Trash, sites: Sequence[Site]) -> list[Finding]:
        """Return a finding for each remaining object and upload of a segment, or one for the record if none remains."""
        if await nodes.node(self._metadata, paths.owner(topic)) is not None:
            return []
        left = [await self._left(site, record, first=site is sites[0]) for site in sites]
        current = await catalog.load(self._metadata, topic)
        refused = await deletion_refused(self._metadata, topic)
        holes = [await self._hole(site, record, current) for site in sites]
        hole = next(filter(None, holes), "")
        reason = f"decided ({record.reason}), and nobody works on the topic"
        kind, verdict = Kind.TRASH, Verdict.DELETE
        if hole:
            kind, verdict, reason = Kind.UNCOVERED, Verdict.ALARM, f"{reason}; it stays: {hole}"
        elif refused:
            verdict, reason = Verdict.KEEP, f"{reason}; it stays: {refused}"
        elif self._rules.apply:
            verdict = Verdict.DELETED
            try:
                if not await self._empty(topic, record, left):
                    return []
            except BucketMissing:
                raise
            except OffloaderError as error:
                verdict, reason = Verdict.FAILED, f"{reason}; its deletion failed: {error}"
        age_s = self._rules.age_s(record.decided_ms)
        about = Finding(key=left[0].key, kind=kind, verdict=verdict, reason=reason, age_s=age_s, topic=topic)
        finds = [replace(about, key=key, size_bytes=size) for one in left for key, size in one.sizes.items()]
        uploads = [replace(about, key=one.key, upload_id=upload_id) for one in left for upload_id in one.uploads]
        return finds + uploads or [about]

    async def _left(self, site: Site, record: deletion.Trash, *, first: bool) -> _Left:
        """Return what is left of a segment in a place; the upload of the record is of the first one."""
        keys, store = record.keys(site.prefix).every, self._objects.at(site.bucket)
        uploads = [record.upload_id] if record.upload_id and first else []
        async with aclosing(store.list_uploads(keys[0])) as found:
            uploads += [one.upload_id async for one in found if one.key == keys[0] and one.upload_id not in uploads]
        sizes = {key: info.size_bytes for key in keys if (info := await find(store, key)) is not None}
        return _Left(site, keys[0], sizes, uploads)

    async def _hole(self, site: Site, record: deletion.Trash, current: TopicMap) -> str:
        return await last_copy(self._objects, current, site.bucket, record.keys(site.prefix))

    async def _empty(self, topic: TopicName, record: deletion.Trash, left: Sequence[_Left]) -> bool:
        """Delete uploads and objects of all places, then the record. False if they must stay after all."""
        current = await catalog.load(self._metadata, topic)
        if holds(current, record) or await deletion_refused(self._metadata, topic):
            return False
        for one in left:
            if await self._hole(one.site, record, current):
                return False
        if not record.of_copy:
            await self._delete(record, left)
        elif not await self._copy_removed(topic, record, left):
            return False
        try:
            await self._metadata.delete(record.path(topic))
        except NotFound:
            return True  # an owner was faster
        return True

    async def _copy_removed(self, topic: TopicName, record: deletion.Trash, left: Sequence[_Left]) -> bool:
        """Delete a copy while none of the topic can begin; False if that is not possible now."""
        [place] = record.places(("", ""))

        async def named() -> bool:
            return holds(await catalog.load(self._metadata, topic), record)

        return await removed(
            self._metadata,
            topic,
            removal_of(record.segment_id, place, self._rules.now_ms),
            broke_off=self._rules.broke_off,
            named=named,
            remove=partial(self._delete, record, left),
        )

    async def _delete(self, record: deletion.Trash, left: Sequence[_Left]) -> None:
        for one in left:
            store = self._objects.at(one.site.bucket)
            for upload_id in one.uploads:
                await store.abort_upload(one.key, upload_id)
            await store.delete(record.keys(one.site.prefix).every)

    async def attempts(self, found: References, summary: Summary) -> AsyncGenerator[Finding, None]:
        """Yield a finding for the open segment of each topic that is not offloaded, once older than the grace age."""
        for topic in sorted({*found.attempts.values()}, key=str):
            for one in (await self._attempt_of(topic, summary), await self._copy_of(topic)):
                if one is not None:
                    yield one

    async def _attempt_of(self, topic: TopicName, summary: Summary) -> Finding | None:
        """Return the finding for a topic's open segment; None for a young one, or one of an offloaded topic."""
        policy = await nodes.node(self._metadata, paths.policy(topic))
        doubt = "nobody has said whether the topic is offloaded: enable or disable it"
        if policy is not None:
            try:
                if decode_policy(policy.value, path=paths.policy(topic)).enabled:
                    return None
                doubt = ""
            except CorruptData as error:
                doubt = f"its policy cannot be read ({error}): set it again"
        epoch = await nodes.node(self._metadata, paths.epoch(topic))  # before all else: a claim raises it
        node = await nodes.node(self._metadata, paths.attempt(topic))
        if node is None:
            return None
        attempt = attempt_record.decode(node.value, path=paths.attempt(topic))
        if self._rules.age_s(attempt.assigned_ms) < self._rules.grace_s:
            return None
        if (attempt.bucket, attempt.keys.prefix) not in {(one.bucket, one.prefix) for one in self._rules.sites}:
            summary.elsewhere += 1
            return None
        verdict, reason = Verdict.DELETE, DISABLED
        if epoch is None or policy is None:
            doubt = doubt or "no daemon ever owned the topic"
        doubt = doubt or await self._doubt(topic, attempt)
        if doubt:
            verdict, reason = Verdict.KEEP, f"an open segment of a topic that is not offloaded; it stays: {doubt}"
        elif self._rules.apply and epoch is not None and policy is not None:
            trash = deletion.Trash(
                segment_id=attempt.segment_id,
                upload_id=attempt.upload_id,
                reason="its topic is disabled",
                decided_ms=self._rules.now_ms,
                bucket=attempt.bucket,
                prefix=attempt.keys.prefix,
                ledger_id=attempt.ledger_id,
                readable=False,
            )
            steps: list[Step] = [
                _raised(topic, epoch),
                Check(paths.policy(topic), policy.version),
                Delete(paths.attempt(topic), node.version),
                Create(paths.trash_record(topic, attempt.segment_id), deletion.encode_trash(trash)),
            ]
            verdict, reason = await self._given_up(topic, steps)
        return Finding(
            key=attempt.keys.data,
            kind=Kind.UPLOAD,
            verdict=verdict,
            reason=reason,
            age_s=self._rules.age_s(attempt.assigned_ms),
            upload_id=attempt.upload_id,
            topic=topic,
        )

    async def _copy_of(self, topic: TopicName) -> Finding | None:
        """Return the finding for the unfinished copy of a disabled topic; None without one, or for a young one.

        It is put on the trash list, from which a later collection deletes it. The segment itself is in the map.
        """
        policy = await nodes.node(self._metadata, paths.policy(topic))
        epoch = await nodes.node(self._metadata, paths.epoch(topic))
        node = await nodes.node(self._metadata, paths.mirror(topic))
        if node is None or policy is None or epoch is None:
            return None
        copy = copy_record.decode(node.value, path=paths.mirror(topic))
        try:
            disabled = not decode_policy(policy.value, path=paths.policy(topic)).enabled
        except CorruptData:
            return None
        owned = await nodes.node(self._metadata, paths.owner(topic)) is not None
        if not disabled or owned or self._rules.age_s(copy.begun_ms) < self._rules.grace_s:
            return None
        verdict, reason = Verdict.DELETE, "the topic is disabled, so the copy of its segment will not be finished"
        if self._rules.apply:
            raised, checked = _raised(topic, epoch), Check(paths.policy(topic), policy.version)
            trash = given_up(copy, now_ms=self._rules.now_ms)
            steps = [raised, checked, Delete(paths.mirror(topic), node.version)]
            if not copy.removing:
                steps.append(Create(trash.path(topic), deletion.encode_trash(trash)))
            verdict, reason = await self._given_up(topic, steps)
        return Finding(
            key=f"{copy.prefix}{copy.segment_id}",
            kind=Kind.UPLOAD,
            verdict=verdict,
            reason=reason,
            age_s=self._rules.age_s(copy.begun_ms),
            upload_id=copy.upload_id,
            topic=topic,
        )

    async def _given_up(self, topic: TopicName, steps: list[Step]) -> tuple[Verdict, str]:
        """Run the transaction; return verdict and reason. The next collection finds the result of a lost answer."""
        try:
            await self._metadata.transact(steps)
        except (Conflict, NotFound):
            return Verdict.KEEP, "the topic changed during the collection"
        except OffloaderError as error:
            return Verdict.FAILED, f"{DISABLED}; giving it up failed: {error}"
        log.info("gc.attempt_given_up", topic=str(topic))
        return Verdict.DELETED, f"{DISABLED}: it is on the trash list now, from which a later collection deletes it"

    async def _doubt(self, topic: TopicName, attempt: Attempt) -> str:
        """Return why the open segment of a disabled topic stays, empty if it may be deleted."""
        if await nodes.node(self._metadata, paths.owner(topic)) is not None:
            return "a daemon works on the topic"
        if refused := await deletion_refused(self._metadata, topic):
            return refused
        try:
            finished = await find(self._objects.at(attempt.bucket), attempt.keys.manifest)
        except BucketMissing:
            raise
        except OffloaderError as error:
            return f"nobody knows whether it is finished: {error}"
        if finished is not None:
            return "it has a manifest, so it was finished: enable the topic, and it is committed"
        if attempt.segment_id in self._rules.also:
            return ""
        if self._rules.source is None:
            return "there is no ledger source that has its entries"
        return await only_here(self._rules.source, topic, attempt)


async def only_here(source: LedgerSource, topic: TopicName, attempt: Attempt) -> str:
    """Return which of an attempt's entries the source does not have, empty if it has all of them."""
    last = {attempt.begin.ledger_id: attempt.begin.entry_id}
    last |= {block.ledger_id: block.last_entry_id for part in attempt.parts for block in part.blocks}
    last |= {part.ledger_id: part.last_entry_id for part in (attempt.seal.ledgers if attempt.seal else ())}
    for ledger_id, entry_id in last.items():
        try:
            there = await source.confirmed(topic, ledger_id)
        except NotFound:
            return f"it may hold entries of ledger {ledger_id} that the source has no more"
        except OffloaderError as error:
            return f"the source does not say whether it has ledger {ledger_id}: {error}"
        if there.closed and there.last_entry_id < entry_id:
            return f"it may hold entries of ledger {ledger_id} that the source has no more"
    return ""


def _raised(topic: TopicName, epoch: Versioned) -> Step:
    """Return the step that begins another epoch of a topic, as a claim does."""
    path = paths.epoch(topic)
    before = ownership.decode_epoch(epoch.value, path=path)
    return Replace(path, ownership.encode_epoch(replace(before, epoch=before.epoch + 1)), epoch.version)


def _named(record: deletion.Trash, found: References) -> bool:
    """Whether the map has what a trash record names."""
    known = found.committed.get(record.segment_id)
    if known is None or not record.of_copy:
        return known is not None
    return (record.bucket, record.prefix) in known.places
