"""Real BookKeeper and Pulsar servers for tests, as a pytest plugin; one set of them a test process.

They are children of the test process, on free loopback ports, over temporary directories, and are started when the
first test asks for them. Ask for them by an argument (or `usefixtures`), not from inside a running event loop. The
first run on a machine downloads their jars (tests/real/jars.py); when that fails, so do the tests, with what to do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import pytest

from offloaderd.core.clock import SystemClock
from tests.real.bookies import ClusterOptions, bookkeeper_cluster
from tests.real.broker import COMPACTION_FACTORY, BrokerOptions, CannotBuild, missing_tools, offloaders, pulsar_broker
from tests.real.jar_lock import FetchFailed
from tests.real.jars import bookie_jars, broker_jars
from tests.real.java_client import java_client
from tests.real.pulsar import PulsarOptions, pulsar_standalone
from tests.real.pulsar_offloader import pulsar_offloader
from tests.real.pulsar_topics import TOPIC_SETTINGS
from tests.servers import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from tests.real.bookies import BookKeeperCluster
    from tests.real.broker import PulsarBroker
    from tests.real.java_client import JavaClient
    from tests.real.pulsar import PulsarServer
    from tests.real.pulsar_offloader import PulsarOffloader
    from tests.servers import S3Server

T = TypeVar("T")

DOWNLOADING = {
    "bookkeeper_servers",
    "pulsar_server",
    "pulsar_rolling",
    "stock_offloader_session",
    "driven_broker_session",
    "rest_catalogue",
}
"""Fixtures whose first use on a machine downloads, under a deadline of its own."""
TEST_TIMEOUT_S = 2400


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count only the test itself against its time limit, not the start of servers."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if DOWNLOADING.intersection(fixtures) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S, func_only=True))


def started(make: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Run a server for a fixture; a download that failed fails the test in one line instead of a trace."""
    try:
        with running(make()) as server:
            yield server
    except FetchFailed as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def bookkeeper_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookKeeperCluster]:
    """A ZooKeeper and three bookies, in whatever state the test before left them: ask for `bookkeeper` instead.

    Where PULSAR_VERSION names a broker's version, they are of the BookKeeper that comes with it.
    """
    try:
        jars = bookie_jars(broker_jars())
    except FetchFailed as error:
        pytest.fail(str(error), pytrace=False)
    options = ClusterOptions(directory=tmp_path_factory.mktemp("bookkeeper"), jars=jars)
    yield from started(lambda: bookkeeper_cluster(options, SystemClock()))


@pytest.fixture
def bookkeeper(bookkeeper_servers: BookKeeperCluster) -> BookKeeperCluster:
    """A ZooKeeper and three bookies, all of them up; the test may kill, freeze and stop what it likes."""
    asyncio.run(bookkeeper_servers.heal())
    return bookkeeper_servers


@pytest.fixture(scope="session")
def java_ledgers_session(
    bookkeeper_servers: BookKeeperCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaClient]:
    """One client of the cluster: ask for `java_ledgers` instead."""
    directory = tmp_path_factory.mktemp("java-client")
    yield from started(lambda: java_client(bookkeeper_servers.metadata_uri, directory, SystemClock()))


@pytest.fixture
def java_ledgers(bookkeeper: BookKeeperCluster, java_ledgers_session: JavaClient) -> JavaClient:
    """BookKeeper's own Java client on the cluster. To crash a writer, run a `java_client` of the test's own."""
    return java_ledgers_session


@pytest.fixture(scope="session")
def stock_offloader_session(
    bookkeeper_servers: BookKeeperCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PulsarOffloader]:
    """One of Pulsar's offloaders over the cluster: ask for `stock_offloader` instead."""
    directory = tmp_path_factory.mktemp("stock-offloader")
    yield from started(lambda: pulsar_offloader(bookkeeper_servers.metadata_uri, directory, SystemClock()))


@pytest.fixture
def stock_offloader(bookkeeper: BookKeeperCluster, stock_offloader_session: PulsarOffloader) -> PulsarOffloader:
    """Pulsar's own offloader and read handles, with ledgers of the cluster."""
    return stock_offloader_session


@pytest.fixture(scope="session")
def pulsar_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarServer]:
    """A Pulsar standalone with its own ZooKeeper and bookie."""
    options = PulsarOptions(directory=tmp_path_factory.mktemp("pulsar"))
    yield from started(lambda: pulsar_standalone(options, SystemClock()))


@pytest.fixture(scope="session")
def driven_broker_session(
    bookkeeper_servers: BookKeeperCluster, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PulsarBroker]:
    """A broker with our driver on the cluster: ask for `driven_broker` instead."""
    if lacking := missing_tools():
        pytest.skip(lacking)
    directory = tmp_path_factory.mktemp("broker")
    try:
        offloaders(directory)
    except (CannotBuild, FetchFailed) as error:
        pytest.fail(str(error), pytrace=False)
    secrets = {"ACCESS_KEY_ID": s3_server.access_key, "ACCESS_KEY_SECRET": s3_server.secret_key}  # of Pulsar's own
    options = BrokerOptions(
        directory=directory,
        cluster=bookkeeper_servers,
        settings={
            **TOPIC_SETTINGS,
            "forceDeleteNamespaceAllowed": True,
            "managedLedgerOffloadDriver": "offloaderd",
            "compactionServiceFactoryClassName": COMPACTION_FACTORY,
        },
        environment=secrets,
    )
    yield from started(lambda: pulsar_broker(options, SystemClock()))


@pytest.fixture
def driven_broker(bookkeeper: BookKeeperCluster, driven_broker_session: PulsarBroker) -> PulsarBroker:
    """A real broker that offloads through our driver, up; left out with a reason where Maven or a JDK is missing."""
    asyncio.run(driven_broker_session.start())
    return driven_broker_session
