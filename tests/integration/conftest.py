"""Sites whose bucket is in a store of each kind: SeaweedFS, Azurite, and Google's emulator or a server of the tests.

And a REST catalogue of Iceberg, one of each test process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.azure.service import ACCOUNT, KEY
from tests.bookkeeper_servers import started
from tests.gcs_server import gcs_server
from tests.integration.processes import CLOCK, Site
from tests.real import gcs_emulator as emulator
from tests.real.audit import bucket_of
from tests.real.iceberg_catalogue import iceberg_catalogue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.servers import S3Server

AZURE = {"kind": "azure", "azure_account": ACCOUNT, "azure_key": KEY, "connect_timeout_s": 10, "read_timeout_s": 30}


@pytest.fixture
def s3_site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site with a bucket of the S3 server."""
    return Site.at(tmp_path, zookeeper, s3_server, s3_bucket)


@pytest.fixture
async def azure_site(tmp_path: Path, zookeeper: str, azurite: str) -> Site:
    """A site with a new container of Azurite."""
    site = Site(tmp_path, zookeeper, azurite, "", "", f"test-{CLOCK.uuid().hex[:16]}")
    site.settings["objects"] = dict(AZURE)
    async with bucket_of(site) as store:
        await store.create_bucket()  # type: ignore[attr-defined] # of Azure's store
    return site


@pytest.fixture(scope="session")
def gcs_endpoint(request: pytest.FixtureRequest) -> str:
    """Endpoint of the emulator of Google Cloud Storage; empty where it was not built (make stores)."""
    return "" if emulator.lacking() else str(request.getfixturevalue("gcs_emulator"))


@pytest.fixture
async def gcs(gcs_endpoint: str) -> AsyncIterator[str]:
    """Endpoint of that emulator, or of a server in the process of the test."""
    async with gcs_server() as server:
        yield gcs_endpoint or server.endpoint


@pytest.fixture
async def gcs_site(tmp_path: Path, zookeeper: str, gcs: str) -> Site:
    """A site with a new bucket of Google's."""
    site = Site(tmp_path, zookeeper, gcs, "", "", f"test-{CLOCK.uuid().hex}")
    site.settings["objects"] = {"kind": "gcs"}
    async with bucket_of(site) as store:
        await store.create_bucket()  # type: ignore[attr-defined] # of Google's store
    return site


@pytest.fixture
def elsewhere(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings of a bucket, which is still to be made, in a further service: Azurite, or Google's if the test asks."""
    kind = getattr(request, "param", "azure")
    account = {"azure_account": ACCOUNT, "azure_key": KEY} if kind == "azure" else {}
    endpoint = request.getfixturevalue("azurite" if kind == "azure" else kind)
    return {"kind": kind, "bucket": f"test-{CLOCK.uuid().hex[:16]}", "endpoint": endpoint, **account}


@pytest.fixture(scope="session")
def rest_catalogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a running REST catalogue of Iceberg."""
    yield from started(lambda: iceberg_catalogue(tmp_path_factory.mktemp("catalogue"), CLOCK))
