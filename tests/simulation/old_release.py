"""What a daemon of a release without ids has of the stores: it neither stores nor sees what tells of identity.

It knows no deployment, puts no markers, heads or labels, has no source on record, and asks no list when ledgers were
made. All else is this release's code.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from offloaderd.core.errors import NotFound
from offloaderd.format.head import decode_head
from offloaderd.metadata import paths
from offloaderd.objects import keys
from offloaderd.objects.port import ObjectInfo, pieces_of
from offloaderd.objects.stored_as import PLAIN, StoredAs
from tests.simulation.bookies import Source
from tests.simulation.bucket import PREFIXES, BucketClient
from tests.simulation.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offloaderd.core.model import LedgerInfo, TopicName
    from offloaderd.metadata.port import Versioned
    from offloaderd.objects.port import Bytes, Pieces


class OldBucket(BucketClient):
    """The bucket without heads and markers; what it aborts is as old as it is."""

    answerable = False

    async def put(
        self,
        key: str,
        data: Bytes | Pieces,
        *,
        metadata: Mapping[str, str] | None = None,
        if_etag: str | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> ObjectInfo:
        """See ObjectStore; a head that it does not put leaves its segment untold."""
        if not _is_beside(key):
            return await super().put(key, data, metadata=metadata, if_etag=if_etag, stored_as=stored_as)
        head = b"".join(pieces_of(data))
        newest = decode_head(head, key=key).newest
        if newest is not None:
            self._world.untold.add(newest.segment_id)
        return ObjectInfo(key=key, size_bytes=len(head), etag="", modified_ms=self._world.wall_ms())

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """See ObjectReader."""
        if _is_beside(key):
            raise NotFound(f"no object {key}")
        return await super().get(key, first, length)


class OldZooKeeper(ZooKeeper):
    """The metadata without the deployment."""

    async def get(self, path: str) -> Versioned:
        """See MetadataStore."""
        if path == paths.IDENTITY:
            raise NotFound(f"no node {path}")
        return await super().get(path)


class OldSource(Source):
    """Ledgers of which nobody says when they were made."""

    async def ledgers(self, topic: TopicName) -> Sequence[LedgerInfo]:
        """See LedgerSource."""
        return [replace(info, created_ms=None) for info in await super().ledgers(topic)]


def _is_beside(key: str) -> bool:
    return any(keys.is_beside(prefix, key) for prefix in PREFIXES)
