"""The pool on real bookies: what it reads of real ledgers, and what it does when bookies die, freeze or want proof."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from offloaderd.bookkeeper.connections.bookies import BookiePool
from offloaderd.bookkeeper.connections.connection import ConnectionLost, TimedOut
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire.entry import DigestType, EntryChecker
from offloaderd.bookkeeper.wire.protocol import NotHere
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Denied, OffloaderError, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from tests.patience import PATIENCE_S
from tests.real.java_client import Ensemble, payload
from tests.real.jvm import settings_text
from tests.real.writer import Plan, ledger_writer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from tests.real.bookies import Bookie, BookKeeperCluster
    from tests.real.java_client import JavaClient

T = TypeVar("T")
CLOCK = SystemClock()
EVERYWHERE = Ensemble(size=3, write_quorum=3, ack_quorum=3)
CERTIFICATES = Path(__file__).parents[2] / "unit" / "bookkeeper" / "certificates"
USER: dict[str, Any] = {"sasl_username": "offloaderd", "sasl_password": "s3cret"}
TLS: dict[str, Any] = {
    "tls": True,
    "tls_ca_file": str(CERTIFICATES / "authority.pem"),
    "tls_cert_file": str(CERTIFICATES / "daemon.pem"),
    "tls_key_file": str(CERTIFICATES / "daemon.key"),
}


@asynccontextmanager
async def bookie_pool(
    cluster: BookKeeperCluster, options: BookkeeperSettings | None = None
) -> AsyncIterator[BookiePool]:
    """Give a pool on the cluster."""
    async with (
        ZooKeeperStore(cluster.zookeeper, "/") as znodes,
        BookiePool(znodes, clock=CLOCK, metrics=Metrics(), options=options) as pool,
    ):
        yield pool


async def until_read(pool: BookiePool, bookie_id: str, ledger_id: int, entry_id: int) -> bytes:
    """Read an entry as soon as the bookie gives it."""
    return await until_given(lambda: pool.read(bookie_id, ledger_id, entry_id))


async def until_given(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask a bookie until it answers within the pool's deadline, which a busy machine may miss."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await ask()
            except Transient:
                await CLOCK.sleep(0.1)


async def test_ledgers_of_the_java_client(bookkeeper: BookKeeperCluster, java_ledgers: JavaClient) -> None:
    """Singly and in batches, from every bookie, every entry passes its check; so does the end of an open ledger."""
    ledger = java_ledgers.create(EVERYWHERE)
    contents = ledger.add(200, 1000)
    checker = EntryChecker(ledger.ledger_id, DigestType.CRC32C)
    async with bookie_pool(bookkeeper) as pool:
        for bookie in bookkeeper.bookies:
            entries: list[bytes] = []
            while len(entries) < 200:
                count = 200 - len(entries)
                entries += await pool.read_batch(
                    bookie.bookie_id, ledger.ledger_id, len(entries), count_max=count, bytes_max=50_000
                )
            assert checker.check_run(0, entries).payloads == contents
            async with asyncio.TaskGroup() as group:
                reads = [
                    group.create_task(pool.read(bookie.bookie_id, ledger.ledger_id, number)) for number in range(200)
                ]
            assert [read.result() for read in reads] == entries
            known = await pool.last_known(bookie.bookie_id, ledger.ledger_id)
            assert known.stored == entries[-1]
            assert 100 <= known.max_lac <= 199
        nothing = await pool.last_known(bookkeeper.bookies[0].bookie_id, 2**40)
        assert nothing == (None, -1)
        for missing in (
            pool.read(bookkeeper.bookies[0].bookie_id, ledger.ledger_id, 200),
            pool.read(bookkeeper.bookies[0].bookie_id, 2**40, 0),
            pool.read_batch(bookkeeper.bookies[0].bookie_id, ledger.ledger_id, 200, count_max=5, bytes_max=100),
        ):
            with pytest.raises(NotHere):
                await missing


async def test_the_largest_entries(bookkeeper: BookKeeperCluster) -> None:
    """An entry of nearly 5 MiB comes singly, and alone in a batch that has less room."""
    async with ledger_writer(bookkeeper.zookeeper, CLOCK) as writer, bookie_pool(bookkeeper) as pool:
        ledger = await writer.create(Plan(ensemble=1, write_quorum=1, ack_quorum=1))
        contents = [payload(ledger.ledger_id, number, 5 * 1024 * 1024 - 1000) for number in range(3)]
        await ledger.add(contents)
        (bookie_id,) = ledger.metadata.replicas(0)
        checker = EntryChecker(ledger.ledger_id, DigestType.CRC32C)
        single = await pool.read(bookie_id, ledger.ledger_id, 0)
        batch = await pool.read_batch(bookie_id, ledger.ledger_id, 1, count_max=2, bytes_max=1 << 20)
        assert checker.check_run(0, [single, *batch]).payloads == contents[:2]


async def test_a_killed_bookie(bookkeeper: BookKeeperCluster, java_ledgers: JavaClient) -> None:
    """Who waits is told at once, it is asked last from then on, and served again once it is back."""
    ledger = java_ledgers.create(EVERYWHERE)
    ledger.add(50)
    ids = [bookie.bookie_id for bookie in bookkeeper.bookies]
    async with bookie_pool(bookkeeper) as pool:
        before = await pool.read(ids[0], ledger.ledger_id, 7)
        await bookkeeper.bookies[0].kill()
        for _ in range(2):
            with pytest.raises(Transient):
                await pool.read(ids[0], ledger.ledger_id, 8)
        assert pool.ordered(ids)[-1] == ids[0]
        assert pool.batches(ids[0])
        await pool.read(ids[1], ledger.ledger_id, 8)
        await bookkeeper.heal()
        with suppress(NotHere):  # the tests' bookies do not sync: a killed one may have forgotten a young ledger
            assert await until_read(pool, ids[0], ledger.ledger_id, 7) == before
        assert pool.ordered(ids) == ids


async def test_a_frozen_bookie(bookkeeper: BookKeeperCluster, java_ledgers: JavaClient) -> None:
    """Deadlines end the waiting, the connection is given up, and the bookie serves again after it thawed."""
    ledger = java_ledgers.create(EVERYWHERE)
    ledger.add(50)
    bookie = bookkeeper.bookies[1]
    async with bookie_pool(bookkeeper, BookkeeperSettings(request_timeout_s=0.5)) as pool:
        before = await until_read(pool, bookie.bookie_id, ledger.ledger_id, 7)
        await until_given(
            lambda: pool.read_batch(bookie.bookie_id, ledger.ledger_id, 0, count_max=9, bytes_max=1 << 20)
        )
        bookie.freeze()
        async with asyncio.TaskGroup() as group:
            waiting = [
                group.create_task(failure_of(pool.read(bookie.bookie_id, ledger.ledger_id, number)))
                for number in range(5)
            ]
        assert {type(task.result()) for task in waiting} == {TimedOut}
        assert pool.ordered([bookie.bookie_id, "other:1"])[-1] == bookie.bookie_id
        bookie.thaw()
        assert await until_read(pool, bookie.bookie_id, ledger.ledger_id, 7) == before
        assert pool.batches(bookie.bookie_id)


async def test_a_bookie_without_its_registration(bookkeeper: BookKeeperCluster, java_ledgers: JavaClient) -> None:
    """One whose id is an address is found even when ZooKeeper knows nothing of it."""
    ledger = java_ledgers.create(EVERYWHERE)
    ledger.add(5)
    async with bookie_pool(bookkeeper, BookkeeperSettings(ledgers_root="/nowhere")) as pool:
        for bookie in bookkeeper.bookies:
            assert await pool.read(bookie.bookie_id, ledger.ledger_id, 1)


async def failure_of(request: Awaitable[object]) -> OffloaderError | None:
    """Return what a request raised."""
    try:
        await request
    except OffloaderError as error:
        return error
    return None


@asynccontextmanager
async def changed(bookie: Bookie, settings: Mapping[str, object], jvm: str = "") -> AsyncIterator[None]:
    """Run a bookie with more settings for as long as the body runs."""
    config, command = bookie.config.read_text(), bookie.command
    bookie.config.write_text(config + settings_text(settings))
    bookie.command = replace(command, environment={**command.environment, "JAVA_TOOL_OPTIONS": jvm})
    try:
        await bookie.restart()
        yield
    finally:
        bookie.config.write_text(config)
        bookie.command = command
        await bookie.restart()


async def test_a_bookie_that_wants_proof(bookkeeper: BookKeeperCluster, tmp_path: Path) -> None:
    """SASL DIGEST-MD5 and TLS with certificates of both sides, each way of asking, and each way of being refused."""
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(
        'Bookie {\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n  user_offloaderd="s3cret";\n};\n'
    )
    settings = {
        "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory",
        "saslJaasClientAllowedIds": USER["sasl_username"],
        "tlsProvider": "JDK",
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsClientAuthentication": True,
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": CERTIFICATES / "bookie.key",
        "tlsCertificatePath": CERTIFICATES / "bookie.pem",
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": CERTIFICATES / "authority.pem",
    }
    bookie = bookkeeper.bookies[2]
    async with ledger_writer(bookkeeper.zookeeper, CLOCK) as writer:
        ledger = await writer.create(Plan(ensemble=1, write_quorum=1, ack_quorum=1, bookies=[bookie.bookie_id]))
        contents = [payload(ledger.ledger_id, number, 100_000) for number in range(20)]
        await ledger.add(contents)
    checker = EntryChecker(ledger.ledger_id, DigestType.CRC32C)
    # Without a realm of Kerberos, of which it makes no use, the JVM looks for one in the DNS.
    kerberos = "-Djava.security.krb5.realm=NONE -Djava.security.krb5.kdc=localhost"
    async with changed(bookie, settings, f"-Djava.security.auth.login.config={jaas} {kerberos}"):
        for options in (BookkeeperSettings(**USER), BookkeeperSettings(**USER, **TLS)):
            async with bookie_pool(bookkeeper, options) as pool:
                single = await pool.read(bookie.bookie_id, ledger.ledger_id, 0)
                batch = await pool.read_batch(bookie.bookie_id, ledger.ledger_id, 1, count_max=19, bytes_max=1 << 23)
                known = await pool.last_known(bookie.bookie_id, ledger.ledger_id)
                assert checker.check_run(0, [single, *batch]).payloads == contents
                assert known.stored == batch[-1]
                lac = known.max_lac
                told = await pool.newer(bookie.bookie_id, ledger.ledger_id, lac, seconds=0.2)
                assert await told == lac
        for options, says in (
            (BookkeeperSettings(), "bookkeeper.sasl_username"),
            (BookkeeperSettings(**USER | {"sasl_password": "wrong"}), "JAAS"),
            (BookkeeperSettings(**USER | {"sasl_username": "stranger"}), "JAAS"),
            (
                BookkeeperSettings(**USER, **TLS | {"tls_cert_file": None, "tls_key_file": None}),
                "tlsClientAuthentication",
            ),
            (BookkeeperSettings(**USER, **TLS | {"tls_ca_file": None}), "bookkeeper.tls"),
        ):
            async with bookie_pool(bookkeeper, options) as pool:
                for ask in (
                    pool.read(bookie.bookie_id, ledger.ledger_id, 0),
                    pool.last_known(bookie.bookie_id, ledger.ledger_id),
                ):
                    # That our certificate is missing is heard only if that comes before the end of the connection.
                    with pytest.raises((Denied, ConnectionLost)) as caught:
                        await ask
                    assert says in caught.value.hint
                    assert isinstance(caught.value, Denied) or says == "tlsClientAuthentication"
