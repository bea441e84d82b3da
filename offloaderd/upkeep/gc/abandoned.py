"""Trash of topics that nobody works on: deletions that were decided, and have no owner who would carry them out.

Only what is on a topic's trash list goes, and never what its map refers to; who deletes it, and how often, makes no
difference, so an owner that comes meanwhile may do the same. What lies elsewhere is left with its record.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from offloaderd.core.errors import BucketMissing, NotFound, OffloaderError
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.identity import deletion_refused
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.last_copy import last_copy
from offloaderd.objects import lookup as look
from offloaderd.upkeep.gc.findings import Find, Kind, Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.core.model import TopicName
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.metadata.records.trash import Trash
    from offloaderd.objects.port import SegmentStore
    from offloaderd.upkeep.gc.findings import Summary
    from offloaderd.upkeep.gc.references import References
    from offloaderd.upkeep.gc.rules import Rules
    from offloaderd.upkeep.stored import Site


class AbandonedTrash:
    """Finds it and, unless it is a dry run, empties it."""

    def __init__(self, objects: SegmentStore, metadata: MetadataStore, rules: Rules) -> None:
        self._objects = objects
        self._metadata = metadata
        self._rules = rules

    async def finds(self, found: References, summary: Summary) -> AsyncGenerator[Find, None]:
        """Yield what is in the trash of topics without owner for longer than grace age and readers want."""
        for segment_id, (topic, record) in found.trash.items():
            if self._site(record) is None:
                summary.elsewhere += 1
            elif segment_id not in found.committed and self._rules.age_s(record.decided_ms) >= self._stays_s(record):
                for find in await self._dealt_with(topic, record):
                    yield find

    def _stays_s(self, record: Trash) -> float:
        """Return how long after the decision its objects stay: for the grace age, and for readers as with an owner."""
        readers_s = 0.0 if record.readable is False else self._rules.readers_s
        return max(self._rules.grace_s, readers_s)

    def _site(self, record: Trash) -> Site | None:
        """Return where a record's objects lie, None for elsewhere."""
        home = self._rules.sites[0]
        bucket = home.bucket if record.bucket is None else record.bucket
        prefix = home.prefix if record.prefix is None else record.prefix
        return next((one for one in self._rules.sites if (one.bucket, one.prefix) == (bucket, prefix)), None)

    async def _dealt_with(self, topic: TopicName, record: Trash) -> list[Find]:
        """Return a find for each thing that is left of a segment, and for the record alone if nothing is."""
        if await nodes.node(self._metadata, paths.owner(topic)) is not None:
            return []
        site = self._site(record)
        assert site is not None  # noqa: S101 - what lies elsewhere is left out
        keys, store = record.keys(site.prefix).every, self._objects.at(site.bucket)
        uploads = [record.upload_id] if record.upload_id else []
        async with aclosing(store.list_uploads(keys[0])) as found:
            uploads += [one.upload_id async for one in found if one.key == keys[0] and one.upload_id not in uploads]
        current = await catalog.load(self._metadata, topic)
        refused = await deletion_refused(self._metadata, topic)
        hole = await last_copy(self._objects, current, site.bucket, record.keys(site.prefix))
        sizes = {key: info.size_bytes for key in keys if (info := await look.head(store, key)) is not None}
        reason = f"decided ({record.reason}), and nobody works on the topic"
        kind, verdict = Kind.TRASH, Verdict.DELETE
        if hole:
            kind, verdict, reason = Kind.UNCOVERED, Verdict.ALARM, f"{reason}; it stays: {hole}"
        elif refused:
            verdict, reason = Verdict.KEEP, f"{reason}; it stays: {refused}"
        elif self._rules.apply:
            verdict = Verdict.DELETED
            try:
                if not await self._empty(site, topic, record, uploads):
                    return []
            except BucketMissing:
                raise
            except OffloaderError as error:
                verdict, reason = Verdict.FAILED, f"{reason}; its deletion failed: {error}"
        age_s = self._rules.age_s(record.decided_ms)
        parts = [(key, size, "") for key, size in sizes.items()] + [(keys[0], 0, one) for one in uploads]
        return [
            Find(
                key=key,
                kind=kind,
                verdict=verdict,
                reason=reason,
                size_bytes=size,
                age_s=age_s,
                upload_id=upload_id,
                topic=topic,
            )
            for key, size, upload_id in parts or [(keys[0], 0, "")]
        ]

    async def _empty(self, site: Site, topic: TopicName, record: Trash, uploads: list[str]) -> bool:
        """Delete uploads, objects and the record, in this order; not what is to stay after all."""
        current = await catalog.load(self._metadata, topic)
        if any(one.segment_id == record.segment_id for one in current.segments):
            return False
        if await deletion_refused(self._metadata, topic):
            return False
        if await last_copy(self._objects, current, site.bucket, record.keys(site.prefix)):
            return False
        store, keys = self._objects.at(site.bucket), record.keys(site.prefix).every
        for upload_id in uploads:
            await store.abort_upload(keys[0], upload_id)
        await store.delete(keys)
        try:
            await self._metadata.delete(paths.trash_record(topic, record.segment_id))
        except NotFound:
            return True  # an owner was faster
        return True
