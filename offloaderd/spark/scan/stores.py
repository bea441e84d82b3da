"""The stores that a driver plans with: opened by the first look, kept for all of a reader or an export, closed with it.

A session of ZooKeeper for each look would be three for each step of a stream. What fails is closed, so that what comes
next does not go on with what may be broken.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Self, TypeVar

from offloaderd.core.clock import SystemClock
from offloaderd.daemon import stores
from offloaderd.daemon.settings import Settings
from offloaderd.metadata.port import MetadataStore
from offloaderd.objects import bucket
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
    """Have a bucket together with what says what is committed in it. Raises what entering the metadata store raises."""
    if metadata is Metadata.BUCKET:
        yield Stores(objects, None)
        return
    async with stores.metadata_store(settings) as store:
        yield Stores(objects, store)


@asynccontextmanager
async def opened(options: SourceOptions) -> AsyncIterator[Stores]:
    """Have the stores of a query. Raises as `known_to`."""
    async with (
        bucket.bucket_store(options.settings.objects, SystemClock()) as objects,
        known_to(options.settings, options.metadata, objects) as found,
    ):
        yield found


class HeldStores:
    """Runs what asks the stores of a query, in a loop of its own; they stay open between two calls."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._runner: asyncio.Runner | None = None
        self._stack = AsyncExitStack()
        self._stores: Stores | None = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close them."""
        self.close()

    def run(self, work: Callable[[Stores], Awaitable[T]]) -> T:
        """Return what some work on the stores returns; blocks. Raises what it raises, and what opening them does."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(self._with(work))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close what is open; the next call opens it again."""
        runner, self._runner, self._stores = self._runner, None, None
        if runner is not None:
            with runner:
                runner.run(self._stack.aclose())

    async def _with(self, work: Callable[[Stores], Awaitable[T]]) -> T:
        if self._stores is None:
            self._stores = await self._stack.enter_async_context(opened(self._options))
        return await work(self._stores)
