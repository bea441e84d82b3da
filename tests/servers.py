"""Real servers for tests, as a pytest plugin: ZooKeeper and an S3 server, one of each a test process.

They are children of the test process, on free loopback ports, over temporary directories, and are started when the
first test asks for them. Ask for them by an argument (or `usefixtures`), not from inside a running event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.session import get_session

from offloaderd.core.clock import SystemClock
from offloaderd.standalone.ports import free_ports
from offloaderd.standalone.zookeeper import ZooKeeperOptions, zookeeper
from tests.azure import azurite as azurite_program
from tests.real import gcs_emulator as emulator
from tests.real import stores

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from offloaderd.standalone.seaweed import SeaweedUser

T = TypeVar("T")


class S3Server(NamedTuple):
    """Where the S3 server is and who may use it."""

    endpoint: str
    access_key: str
    secret_key: str


@contextmanager
def running(server: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Run an async context from sync code: a loop for the start, the same again for the stop, none between."""
    loop = asyncio.new_event_loop()
    try:
        started = loop.run_until_complete(server.__aenter__())
        try:
            yield started
        finally:
            loop.run_until_complete(server.__aexit__(None, None, None))
    finally:
        loop.close()


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running ZooKeeper, as host:port."""
    clock = SystemClock()
    options = ZooKeeperOptions(directory=tmp_path_factory.mktemp("zookeeper"), port=free_ports(1, clock)[0])
    with running(zookeeper(options, clock)) as server:
        yield server.address


@pytest.fixture(scope="session", name="zookeeper")
def zookeeper_address(zookeeper_server: str) -> str:
    """Address of ZooKeeper as host:port; sessions may be as short as 1 s."""
    return zookeeper_server


@contextmanager
def s3_server_in(directory: Path, users: tuple[SeaweedUser, ...] = ()) -> Iterator[S3Server]:
    """Run SeaweedFS, for others than its owner as well."""
    with running(stores.seaweedfs(directory, SystemClock(), users)) as server:
        yield S3Server(server.endpoint, server.access_key, server.secret_key)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running S3 server: SeaweedFS, or the one that the environment names (tests/real/stores.py)."""
    with running(stores.store(stores.wanted(), tmp_path_factory.mktemp("s3"), SystemClock())) as server:
        yield S3Server(server.endpoint, server.access_key, server.secret_key)


@pytest.fixture(scope="session")
def gcs_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Endpoint of a running emulator of Google Cloud Storage; without one the test is left out."""
    if reason := emulator.lacking():
        pytest.skip(reason)
    with running(emulator.gcs_emulator(tmp_path_factory.mktemp("gcs"), SystemClock())) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Endpoint of a running Azurite; where it cannot be installed the test is left out."""
    if reason := azurite_program.lacking():
        pytest.skip(reason)
    with running(azurite_program.azurite_in(tmp_path_factory.mktemp("azurite"))) as endpoint:
        yield endpoint


@contextmanager
def s3_client(server: S3Server) -> Iterator[Any]:
    """Give a client of the S3 server."""
    client = get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=Config(s3={"addressing_style": "path"}),
    )
    try:
        yield client
    finally:
        client.close()


@contextmanager
def bucket_at(server: S3Server, name: str = "") -> Iterator[str]:
    """Give a new, empty bucket, with a name of its own unless one is said; deleted with all in it afterwards."""
    name = name or f"test-{SystemClock().uuid().hex[:16]}"
    with s3_client(server) as client:
        client.create_bucket(Bucket=name)
        try:
            yield name
        finally:
            _drop(client, name)


def _drop(client: Any, bucket: str) -> None:  # noqa: ANN401 - botocore's clients have no type
    """Delete a bucket with all that is in it; SeaweedFS does it in one request."""
    try:
        client.delete_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response["Error"]["Code"] != "BucketNotEmpty":
            raise
        for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket):
            for upload in page.get("Uploads", ()):
                client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for found in page.get("Contents", ()):
                client.delete_object(Bucket=bucket, Key=found["Key"])
        client.delete_bucket(Bucket=bucket)


@pytest.fixture
def s3_bucket(s3_server: S3Server) -> Iterator[str]:
    """Name of a new, empty bucket, deleted with all that is in it afterwards."""
    with bucket_at(s3_server) as name:
        yield name
