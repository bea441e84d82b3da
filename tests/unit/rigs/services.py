"""Stores of Azure and Google over their services in the process of the test."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from offloaderd.core.clock import SystemClock
from offloaderd.objects.azure.store import AzureStore
from offloaderd.objects.gcs.store import GcsStore
from offloaderd.objects.settings import ObjectsSettings
from tests.azure import service as azure
from tests.gcs_server import gcs_server

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncIterator

    from offloaderd.objects.buckets import BucketStore

REAL_TIME = "the services in the process listen on sockets"
BUCKET = "segments"


@asynccontextmanager
async def store_of(kind: str) -> AsyncIterator[tuple[BucketStore, list[str] | Counter[str]]]:
    """Open a store over its service; yields it and the requests that the service got."""
    if kind == "gcs":
        of = ObjectsSettings(kind="gcs", bucket=BUCKET)
        async with gcs_server(BUCKET) as server, GcsStore(of.model_copy(update={"endpoint": server.endpoint})) as store:
            yield store, server.requests
        return
    service = azure.Service(SystemClock())
    async with azure.serving(service) as endpoint, AzureStore(azure.options(endpoint, BUCKET)) as store:
        await store.create_bucket()
        yield store, service.requests
