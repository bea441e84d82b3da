"""The marker of a place: which deployment of a cluster's name works below a prefix.

It is put by the first daemon that finds none, and read by whoever is about to delete what no metadata refer to. Two
deployments that share cluster name, bucket and prefix by accident would each take the other's objects for rubbish.
Whoever works there as well puts a marker of its own beside it, a guest's: open uploads do not say whose they are.
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
    "give each deployment a bucket, prefix or daemon.cluster of its own; if the other one is gone: "
    "`offloadctl identity accept --place`"
)
"""The way out where another deployment works in a place."""


TRIES = 5


class Marked(NamedTuple):
    """A marker as it lies in a place, and since when it does by the store's clock."""

    marker: PlaceMarker
    stored_ms: int

    def other_than(self, deployment_id: str) -> str:
        """Say whose the place is if it is not this deployment's; empty: it is ours."""
        one = self.marker
        if one.deployment_id == deployment_id:
            return ""
        return f"deployment {one.deployment_id} of cluster {one.cluster!r} works there (daemon {one.daemon_id})"


async def read(store: ObjectReader, prefix: str, cluster: str) -> Marked | None:
    """Return the marker of a place, None where there is none. Raises CorruptData, BucketMissing, Transient, Denied."""
    key = keys.marker(prefix, cluster)

    async def take(get: Get) -> PlaceMarker:
        return head_format.decode_marker(await get(None), key=key)

    async def marked() -> Marked:
        info = await store.head(key)
        return Marked(await read_sure(take, partial(store.get, key, 0)), info.modified_ms)

    return await present(marked())


async def ensure(store: ObjectStore, prefix: str, marker: PlaceMarker) -> Marked:
    """Put a marker where there is none, and a guest's beside another's; returns the one that is there.

    Raises as `read` does.
    """
    etag = ""
    for _ in range(TRIES):
        found = None
        try:
            found = await read(store, prefix, marker.cluster)
        except CorruptData:
            if not etag:
                raise  # else it was put just now, and damaged on its way: it is put again in its own place
        if found is not None:
            theirs = found.other_than(marker.deployment_id)
            if theirs and marker.deployment_id not in await provisional_deployments(store, prefix, marker.cluster):
                await put(store, prefix, marker, provisional=True)
            return found
        try:
            etag = (await put(store, prefix, marker, if_etag=etag)).etag
        except Conflict:
            etag = ""  # another one came first
    return Marked(marker, marker.since_ms)


async def put(
    store: ObjectStore, prefix: str, marker: PlaceMarker, *, provisional: bool = False, if_etag: str | None = None
) -> ObjectInfo:
    """Put a marker in place of the one that there is (or of that ETag alone), or a provisional one beside it."""
    cluster, ours = marker.cluster, marker.deployment_id
    key = keys.provisional_marker(prefix, cluster, ours) if provisional else keys.marker(prefix, cluster)
    labels = keys.segment_metadata(cluster, ours)
    return await store.put(key, head_format.encode_marker(marker), metadata=labels, if_etag=if_etag)


async def provisional_deployments(store: ObjectReader, prefix: str, cluster: str) -> dict[str, str]:
    """Return the deployments that work in a place which is marked as another's, and the keys of their markers."""
    begin = keys.provisional_markers(prefix, cluster)
    async with aclosing(store.list(begin)) as found:
        return {info.key.removeprefix(begin).removesuffix(".marker"): info.key async for info in found}
