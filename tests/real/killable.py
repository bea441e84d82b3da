"""The daemon's program with a place at which it dies: `python -m tests.real.killable serve`.

KILL_AT in the environment names the place as `LABEL:MOMENT` or `LABEL:MOMENT:NUMBER`; labels are those of `labels.py`.
At that request (the first, or the one with that number) the process sends itself SIGKILL: `before` it is sent,
`midway` (while it is on its way), or `after` it has been answered and before anybody here has heard of it. Nothing
else differs from `offloaderd`: same stores, same servers.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

from offloaderd.cli.offloaderd.__main__ import main
from offloaderd.core.clock import SystemClock
from offloaderd.daemon import stores
from offloaderd.ledgers.embedded.store import EmbeddedLedgers
from offloaderd.metadata.zookeeper import store as zookeeper_store
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.objects.azure import store as azure_store
from offloaderd.objects.gcs import store as gcs_store
from offloaderd.objects.s3 import store as s3_store
from offloaderd.objects.stored_as import PLAIN, StoredAs
from tests.real import labels
from tests.real.points import KillPoint

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence

    from offloaderd.core.model import TopicName
    from offloaderd.metadata.port import Step
    from offloaderd.objects.buckets import BucketStore
    from offloaderd.objects.port import Bytes, ObjectInfo, PartInfo, Pieces, UploadInfo

T = TypeVar("T")
VARIABLE = "KILL_AT"
MIDWAY_S = 0.002


async def around(label: str, request: Coroutine[Any, Any, T]) -> T:
    """Send a request, unless this process is to end before; end it on the way or afterwards if it is to.

    An error is an answer as well.
    """
    if not point.is_reached(label):
        return await request
    if point.moment == "before":
        die()
    if point.moment == "midway":
        return await on_its_way(request)
    try:
        return await request
    finally:
        die()


async def on_its_way(request: Coroutine[Any, Any, T]) -> T:
    """Send a request and end this process a moment later."""

    async def end() -> None:
        await SystemClock().sleep(MIDWAY_S)
        die()

    async with asyncio.TaskGroup() as group:
        ending = group.create_task(end())
        try:
            return await request
        finally:
            await ending


def die() -> None:
    """End this process as a power failure would."""
    os.kill(os.getpid(), signal.SIGKILL)


def killable(store: type[BucketStore]) -> type[BucketStore]:
    """Return an adapter of a bucket with the trap round each of its requests."""

    class KillableObjects(store):  # type: ignore[valid-type,misc] # each adapter in turn
        """See the adapter."""

        async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
            """See ObjectReader."""
            return await around(labels.of_object("get", key), super().get(key, first, length))

        async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
            """See ObjectReader."""
            return await around(labels.of_object("get", key), super().get_pieces(key, first, lengths))

        async def head(self, key: str) -> ObjectInfo:
            """See ObjectReader."""
            return await around(labels.of_object("head", key), super().head(key))

        async def put(
            self,
            key: str,
            data: Bytes | Pieces,
            *,
            metadata: Mapping[str, str] | None = None,
            if_etag: str | None = None,
            stored_as: StoredAs = PLAIN,
        ) -> ObjectInfo:
            """See ObjectStore."""
            return await around(
                labels.of_object("put", key),
                super().put(key, data, metadata=metadata, if_etag=if_etag, stored_as=stored_as),
            )

        async def delete(self, keys: Sequence[str]) -> None:
            """See ObjectStore."""
            await around("delete", super().delete(keys))

        async def create_upload(
            self,
            key: str,
            *,
            metadata: Mapping[str, str] | None = None,
            stored_as: StoredAs = PLAIN,
        ) -> str:
            """See MultipartStore."""
            return await around("create_upload", super().create_upload(key, metadata=metadata, stored_as=stored_as))

        async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
            """See MultipartStore."""
            return await around("upload_part", super().upload_part(key, upload_id, part_number, pieces))

        async def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
            """See MultipartStore."""
            return await around("list_parts", super().list_parts(key, upload_id))

        async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
            """See MultipartStore."""
            return await around("complete_upload", super().complete_upload(key, upload_id, parts))

        async def abort_upload(self, key: str, upload_id: str) -> None:
            """See MultipartStore."""
            await around("abort_upload", super().abort_upload(key, upload_id))

        async def list_uploads(self, prefix: str = "") -> AsyncGenerator[UploadInfo, None]:
            """See MultipartStore."""
            await around("list_uploads", nothing())
            async for upload in super().list_uploads(prefix):
                yield upload

    return KillableObjects


class KillableMetadata(ZooKeeperStore):
    """The ZooKeeper adapter, with the trap round each of its changes."""

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        """See MetadataStore."""
        await around(labels.of_change("create", path), super().create(path, value, ephemeral=ephemeral))

    async def replace(self, path: str, value: bytes, version: int) -> int:
        """See MetadataStore."""
        return await around(labels.of_change("replace", path), super().replace(path, value, version))

    async def delete(self, path: str, version: int | None = None) -> None:
        """See MetadataStore."""
        await around(labels.of_change("delete", path), super().delete(path, version))

    async def transact(self, steps: Sequence[Step]) -> None:
        """See MetadataStore."""
        await around(labels.of_steps(steps), super().transact(steps))


class KillableLedgers(EmbeddedLedgers):
    """The embedded ledger store, with the trap round its deletions."""

    async def delete(self, topic: TopicName, ledger_id: int) -> None:
        """See LedgerSource."""
        await around("delete source", super().delete(topic, ledger_id))


async def nothing() -> None:
    """Stand in for a request that has no single moment."""


point = KillPoint("", "before")

if __name__ == "__main__":
    point = KillPoint.parse(os.environ[VARIABLE])
    with (
        mock.patch.object(s3_store, "S3Store", killable(s3_store.S3Store)),
        mock.patch.object(azure_store, "AzureStore", killable(azure_store.AzureStore)),
        mock.patch.object(gcs_store, "GcsStore", killable(gcs_store.GcsStore)),
        mock.patch.object(stores, "ZooKeeperStore", KillableMetadata),
        mock.patch.object(zookeeper_store, "ZooKeeperStore", KillableMetadata),  # commands import it when they run
        mock.patch.object(stores, "EmbeddedLedgers", KillableLedgers),
    ):
        main()
