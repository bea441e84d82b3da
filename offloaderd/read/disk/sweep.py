"""Dropping from the disk what belongs to no segment any more, and what an operator wants dropped.

Retention, an operator, or another daemon that owns the topic deletes a segment; its ranges stay on the disks of all
daemons that have read it. A sweep compares what is on the disk with the maps, `FIRST_S` after the start and then every
`PAUSE_S`. Only maps of topics with something on the disk are read. What is not known for certain stays: a map that
cannot be read says nothing.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidInput, OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.read.disk.cache import DiskCache, Dropped
from offloaderd.read.disk.files import DIGEST_BYTES, OWNER_BYTES, Owner, owner_of, topic_digest

log = structlog.get_logger(__name__)

FIRST_S = 60.0
"""When the first sweep begins after the start: a daemon that was down has missed deletions."""
Topics = Callable[[], Awaitable[Sequence[TopicName]]]
"""Returns all topics, enabled or not."""
Load = Callable[[TopicName], Awaitable[TopicMap]]
"""Returns the map of a topic. Raises OffloaderError."""
PAUSE_S = 3600.0
"""Between two sweeps: about the longest time for which the disk has what was deleted."""


async def keep_swept(disk: DiskCache, clock: Clock, topics: Topics, load: Load) -> None:
    """Sweep again and again, until cancelled; a metadata store that does not answer is asked the next time."""
    await clock.sleep(FIRST_S)
    while True:
        try:
            await sweep(disk, topics, load)
        except OffloaderError as error:
            log.warning("disk_cache.not_swept", error=str(error))
        await clock.sleep(PAUSE_S)


async def sweep(disk: DiskCache, topics: Topics, load: Load) -> Dropped:
    """Drop the ranges of segments that no map has, and of topics that are not there. Raises Transient, Denied."""
    held: defaultdict[bytes, set[Owner]] = defaultdict(set)
    for owner in await disk.owners():
        held[owner[:DIGEST_BYTES]].add(owner)
    if not held:
        return Dropped(0, 0)
    gone = {owner for owners in held.values() for owner in owners}
    for topic in await topics():
        digest = topic_digest(topic.managed_ledger)
        if digest not in held:
            continue
        try:
            found = await load(topic)
        except OffloaderError as error:
            log.warning("disk_cache.topic_not_swept", topic=str(topic), error=str(error))
            gone -= held[digest]
        else:
            gone -= {owner_of(topic.managed_ledger, one.segment_id) for one in found.segments}
    if not gone:
        return Dropped(0, 0)
    dropped = await disk.drop(lambda place: place[:OWNER_BYTES] in gone, cause="gone")
    log.info("disk_cache.swept", segments=len(gone), **dropped._asdict())
    return dropped


async def known_topics(metadata: MetadataStore) -> list[TopicName]:
    """Return all topics that have nodes, enabled or not."""
    found = []
    for folder in await nodes.topic_folders(metadata):
        try:
            found.append(paths.parse_topic(folder))
        except InvalidInput:
            continue  # no topic has this name
    return found


async def purge(disk: DiskCache, topic: TopicName | None, *, dry_run: bool) -> Dropped:
    """Drop the ranges of a topic, also of one that was deleted, or all of them."""
    begin = topic_digest(topic.managed_ledger) if topic is not None else b""
    return await disk.drop(lambda place: place.startswith(begin), cause="purged", dry_run=dry_run)
