"""The stores of a driver: opened by the first call, open for the life of a reader or an export.

A session of ZooKeeper for each call would be three for each step of a stream. After an error they are closed, since a
connection may be broken, and the next call opens them again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from offloaderd.core.clock import SystemClock
from offloaderd.daemon import stores
from offloaderd.daemon.settings import Settings
from offloaderd.metadata.port import MetadataStore
from offloaderd.objects import opening
from offloaderd.objects.port import SegmentStore
from offloaderd.spark.scan.options import SourceOptions
from offloaderd.spark.scan.share import Metadata

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stores:
    """The bucket, and the metadata; without these the map is made from the manifests in the bucket."""

    objects: SegmentStore
    metadata: MetadataStore | None


@asynccontextmanager
async def known_to(settings: Settings, metadata: Metadata, objects: SegmentStore) -> AsyncIterator[Stores]:
    """Yield a bucket with its metadata, opened if the query reads them. Raises as opening the metadata does."""
    if metadata is Metadata.BUCKET:
        yield Stores(objects, None)
        return
    async with stores.metadata_store(settings) as store:
        yield Stores(objects, store)


@asynccontextmanager
async def opened(options: SourceOptions) -> AsyncIterator[Stores]:
    """Yield the stores of a query. Raises as `known_to`."""
    async with (
        opening.bucket_store(options.settings.objects, SystemClock()) as objects,
        known_to(options.settings, options.metadata, objects) as found,
    ):
        yield found


class HeldStores(AbstractContextManager["HeldStores"]):
    """Runs work on the stores of a query, in a loop of its own; they stay open between two calls."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._runner: asyncio.Runner | None = None
        self._stack = AsyncExitStack()
        self._stores: Stores | None = None

    def __exit__(self, *_: object) -> None:
        """Close them."""
        self.close()

    def run(self, work: Callable[[Stores], Awaitable[T]]) -> T:
        """Return the result of work on the stores; blocks. Raises as the work and `opened` do."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(self._with(work))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the stores; the next call opens them again."""
        runner, self._runner, self._stores = self._runner, None, None
        if runner is not None:
            with runner:
                runner.run(self._stack.aclose())

    async def _with(self, work: Callable[[Stores], Awaitable[T]]) -> T:
        if self._stores is None:
            self._stores = await self._stack.enter_async_context(opened(self._options))
        return await work(self._stores)
