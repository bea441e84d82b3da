"""Detection of lost metadata: it has no topic at all, although the bucket holds segments of this cluster.

Only the first keys of each place are listed, so that an alarm comes at once; a collection lists all.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from offloaderd.core.errors import OffloaderError
from offloaderd.metadata import paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.objects import keys
from offloaderd.objects.port import SegmentStore, find
from offloaderd.upkeep.gc.findings import foreign
from offloaderd.upkeep.stored import Site

KEYS_MAX = 1000
"""Keys to list in a place: one page."""
HEADS_MAX = 20
"""Objects of a place whose labels are read."""
ANSWERS_S = 2.0
"""How long the stores may take; after that there is no alarm."""
LOST = "the metadata knows no topic at all, and the bucket holds segments of this cluster"
WHAT_TO_DO = (
    "ZooKeeper was wiped, or metadata.root or daemon.cluster is another than before: correct it, or stop the daemons "
    "and run offloaderd rebuild"
)


async def first_segment(objects: SegmentStore, sites: Sequence[Site]) -> str:
    """Return the first key of a segment of this cluster, empty without one. Raises Transient, Denied, BucketMissing."""
    for site in sites:
        store, listed, heads = objects.at(site.bucket), 0, 0
        async with aclosing(store.list(site.prefix)) as found:
            async for info in found:
                listed += 1
                if keys.parse(site.prefix, info.key) is not None:
                    heads += 1
                    about = await find(store, info.key)
                    if about is not None and not foreign(about, site.cluster):
                        return info.key
                if listed == KEYS_MAX or heads == HEADS_MAX:
                    break
    return ""


async def alarm(metadata: MetadataStore, objects: SegmentStore, sites: Sequence[Site]) -> str:
    """Return the alarm for an operator; empty if there is none, or while a store does not answer."""
    try:
        async with asyncio.timeout(ANSWERS_S):
            key = "" if await metadata.children(paths.TOPICS) else await first_segment(objects, sites)
    except (OffloaderError, TimeoutError):
        return ""
    return f"{LOST}, as {key}: {WHAT_TO_DO}" if key else ""
