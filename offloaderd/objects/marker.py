"""The marker of a place: the deployment of a cluster that uses a prefix.

The first daemon that finds none writes it, and every deletion of objects without metadata reads it first. Two
deployments that share cluster name, bucket and prefix by accident would each collect the other's objects as garbage. A
further deployment writes a provisional marker beside it, because open uploads do not name their deployment.
"""

from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from offloaderd.core.errors import Conflict, CorruptData
from offloaderd.format import head as head_format
from offloaderd.format.head import PlaceMarker
from offloaderd.objects import keys
from offloaderd.objects.port import ObjectInfo, ObjectReader, ObjectStore, present
from offloaderd.objects.whole import Get, read_sure

HINT = (
    "give each deployment a bucket, prefix or daemon.cluster of its own; if the other one does not exist any more: "
    "`offloadctl identity accept --place`"
)
"""Remedy if another deployment uses a place."""


TRIES = 5


class Marked(NamedTuple):
    """A stored marker, and the store's time of its last change."""

    marker: PlaceMarker
    stored_ms: int

    def other_than(self, deployment_id: str) -> str:
        """Describe the deployment of the marker; empty if it is this one."""
        one = self.marker
        if one.deployment_id == deployment_id:
            return ""
        return f"deployment {one.deployment_id} of cluster {one.cluster!r} works there (daemon {one.daemon_id})"


async def read(store: ObjectReader, prefix: str, cluster: str) -> Marked | None:
    """Return the marker of a place, None without one. Raises CorruptData, BucketMissing, Transient, Denied."""
    key = keys.marker(prefix, cluster)

    async def take(get: Get) -> PlaceMarker:
        return head_format.decode_marker(await get(None), key=key)

    async def marked() -> Marked:
        info = await store.head(key)
        return Marked(await read_sure(take, partial(store.get, key, 0)), info.modified_ms)

    return await present(marked())


async def ensure(store: ObjectStore, prefix: str, marker: PlaceMarker) -> Marked:
    """Write a marker if there is none, or a provisional one beside another's. Return the first. Raises as `read`."""
    etag = ""
    for _ in range(TRIES):
        found = None
        try:
            found = await read(store, prefix, marker.cluster)
        except CorruptData:
            if not etag:
                raise  # else our own marker was damaged in transit, and is written again in its place
        if found is not None:
            theirs = found.other_than(marker.deployment_id)
            if theirs and marker.deployment_id not in await provisional_deployments(store, prefix, marker.cluster):
                await put(store, prefix, marker, provisional=True)
            return found
        try:
            etag = (await put(store, prefix, marker, if_etag=etag)).etag
        except Conflict:
            etag = ""  # another daemon was first
    return Marked(marker, marker.since_ms)


async def put(
    store: ObjectStore, prefix: str, marker: PlaceMarker, *, provisional: bool = False, if_etag: str | None = None
) -> ObjectInfo:
    """Write a marker in place of the present one (only of that ETag, if given), or a provisional one beside it."""
    cluster, ours = marker.cluster, marker.deployment_id
    key = keys.provisional_marker(prefix, cluster, ours) if provisional else keys.marker(prefix, cluster)
    labels = keys.segment_metadata(cluster, ours)
    return await store.put(key, head_format.encode_marker(marker), metadata=labels, if_etag=if_etag)


async def provisional_deployments(store: ObjectReader, prefix: str, cluster: str) -> dict[str, str]:
    """Return the deployments with provisional markers in a place, and the keys of the markers."""
    begin = keys.provisional_markers(prefix, cluster)
    async with aclosing(store.list(begin)) as found:
        return {info.key.removeprefix(begin).removesuffix(".marker"): info.key async for info in found}
