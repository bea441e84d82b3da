"""Whether the metadata is lost: it knows no topic at all, and the bucket holds segments of this cluster.

Only the first keys of each place are looked at, so that who is on call hears of it at once; a collection looks at all.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from offloaderd.core.errors import OffloaderError
from offloaderd.metadata import paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.objects import keys
from offloaderd.objects.port import SegmentStore, find
from offloaderd.upkeep.gc.orphans import foreign
from offloaderd.upkeep.stored import Site

KEYS_MAX = 1000
"""Keys that are looked at in a place: one page of a listing."""
HEADS_MAX = 20
"""Objects of a place that are asked whose they are."""
ANSWERS_S = 2.0
"""How long the stores may take before nothing is said of it."""
LOST = "the metadata knows no topic at all, and the bucket holds segments of this cluster"
WHAT_TO_DO = (
    "ZooKeeper was wiped, or metadata.root or daemon.cluster is another than before: correct it, or stop the daemons "
    "and run offloaderd rebuild"
)


async def first_segment(objects: SegmentStore, sites: Sequence[Site]) -> str:
    """Return the key of an object of this cluster's segments among the first keys; empty: there is none.

    Raises Transient, Denied, BucketMissing.
    """
    for site in sites:
        store, looked, asked = objects.at(site.bucket), 0, 0
        async with aclosing(store.list(site.prefix)) as found:
            async for info in found:
                looked += 1
                if keys.parse(site.prefix, info.key) is not None:
                    asked += 1
                    about = await find(store, info.key)
                    if about is not None and not foreign(about, site.cluster):
                        return info.key
                if looked == KEYS_MAX or asked == HEADS_MAX:
                    break
    return ""


async def alarm(metadata: MetadataStore, objects: SegmentStore, sites: Sequence[Site]) -> str:
    """Return what an operator has to know, empty for nothing, or while a store does not answer."""
    try:
        async with asyncio.timeout(ANSWERS_S):
            key = "" if await metadata.children(paths.TOPICS) else await first_segment(objects, sites)
    except (OffloaderError, TimeoutError):
        return ""
    return f"{LOST}, as {key}: {WHAT_TO_DO}" if key else ""
