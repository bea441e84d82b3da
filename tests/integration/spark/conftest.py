"""A site for tests that call Spark, which blocks: the server of a store is never in the thread of such a test."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from offloaderd.spark.export.export import own_session
from offloaderd.spark.session import spark_session
from tests.azure.service import ACCOUNT, KEY
from tests.gcs_server import gcs_server
from tests.integration.spark.site import CLOCK, Site, created, in_thread
from tests.unit.spark.iceberg_lake import library_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.servers import S3Server


@pytest.fixture
def site(request: pytest.FixtureRequest, zookeeper: str) -> Iterator[Site]:
    """An empty site, on S3 unless the test names another kind of store."""
    kind = getattr(request, "param", "s3")
    if kind == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        yield Site(zookeeper, {"bucket": request.getfixturevalue("s3_bucket"), **server._asdict()})
        return
    with ExitStack() as stack:
        objects = {"kind": kind, "bucket": f"test-{CLOCK.uuid().hex[:16]}"}
        if kind == "azure":
            objects |= {"endpoint": request.getfixturevalue("azurite"), "azure_account": ACCOUNT, "azure_key": KEY}
        else:
            running = request.getfixturevalue("gcs_endpoint")
            objects["endpoint"] = running or stack.enter_context(in_thread(gcs_server())).endpoint
        found = Site(zookeeper, objects)
        asyncio.run(created(found))
        yield found


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session with two cores; Spark takes some seconds to start."""
    options = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    with spark_session("tests", master="local[2]", options=options) as session:
        server = session.sparkContext._accumulatorServer
        yield own_session(session)
    server.server_close()  # which Spark leaves to the end of the process


@pytest.fixture
def pools() -> Iterator[None]:
    """Threads of pyiceberg for the time of a test."""
    with library_threads():
        yield
