"""Compacted topics of a real stock broker with our compaction service: the compacted ledger leaves BookKeeper, too."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar
import pytest
from pulsar.schema import StringSchema

from offloaderd.core.clock import SystemClock
from offloaderd.tables.declaration import TableFormat
from tests.integration.broker.test_stock_broker import again, emptied, killed, site
from tests.integration.processes import DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real.driven import Driven
from tests.real.pulsar_topics import pulsar_client
from tests.real.table_rows import rows_of

if TYPE_CHECKING:
    from tests.real.bookies import BookKeeperCluster
    from tests.real.broker import PulsarBroker
    from tests.servers import S3Server

__all__ = ["site"]
CLOCK = SystemClock()
KEYS = 40
NOTHING = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
"""A retention that keeps nothing which is acknowledged, also by the compaction."""


async def compact(driven: Driven) -> int:
    """Have the broker compact the topic; returns the compacted ledger."""
    before = await compacted_ledger(driven)
    await driven.put("compaction")
    async with asyncio.timeout(PATIENCE_S):
        while (found := await compacted_ledger(driven)) in {before, -1}:
            await CLOCK.sleep(0.1)
    return found


async def compacted_ledger(driven: Driven) -> int:
    """Return the compacted ledger that the broker reads; -1 for none."""
    stats = await driven.get("internalStats")
    return int(stats["compactedLedger"]["ledgerId"]) if stats is not None else -1


async def gone(driven: Driven, ledger_id: int) -> None:
    """Wait until BookKeeper has a ledger no more."""
    async with asyncio.timeout(PATIENCE_S):
        while await driven.in_bookkeeper([ledger_id]):
            await CLOCK.sleep(0.1)


async def write(driven: Driven, value: str, keys: int = KEYS) -> None:
    """Send two messages for each key, the second one with `value`-1."""

    def send() -> None:
        with pulsar_client(driven.broker.service_url) as client:
            producer = client.create_producer(str(driven.topic))
            for turn in range(2):
                for key in range(keys):
                    producer.send(f"{value}-{turn}".encode(), partition_key=str(key))

    await asyncio.to_thread(send)


async def read(driven: Driven) -> list[tuple[str, bytes]]:
    """Return keys and values of all messages, as a compacted reader gets them from the earliest one."""

    def receive() -> list[tuple[str, bytes]]:
        found = []
        with pulsar_client(driven.broker.service_url) as client:
            reader = client.create_reader(str(driven.topic), pulsar.MessageId.earliest, is_read_compacted=True)
            while reader.has_message_available():
                message = reader.read_next(60_000)
                found.append((message.partition_key(), message.data()))
        return found

    return await asyncio.to_thread(receive)


@pytest.mark.witness("broker")
async def test_a_compacted_reader_reads_from_the_tier_what_bookkeeper_has_no_more(
    site: Site, driven_broker: PulsarBroker, bookkeeper: BookKeeperCluster, s3_server: S3Server, s3_bucket: str
) -> None:
    """Also where it is all that is left of the topic, and once a daemon is back; so does the next compaction.

    Copies go when they are replaced, and with the topic.
    """
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await daemon.serving()
        driven = Driven(driven_broker, bookkeeper, daemon.address)
        copies = replace(driven.topic, local=f"{driven.topic.local}/__compaction")
        await driven.create()
        await driven.offload()
        await write(driven, "first")
        first = await compact(driven)
        await gone(driven, first)
        newest = {str(key): b"first-1" for key in range(KEYS)}
        assert sorted(await read(driven)) == sorted(newest.items())
        assert await driven_broker.send("POST", f"namespaces/public/{driven.namespace}/retention", NOTHING) == 204
        async with asyncio.timeout(PATIENCE_S):
            while len(await driven.ledgers()) > 1:
                await CLOCK.sleep(0.2)
        await driven.unload()
        assert sorted(await read(driven)) == sorted(newest.items())
        assert [one.begin.ledger_id for one in await client.segments(copies)] == [first]

        await write(driven, "second", KEYS // 2)
        await driven.unload()
        await killed(daemon)
        reading = asyncio.create_task(read(driven))  # noqa: TID251 - it waits for what only the tier has
        await CLOCK.sleep(2)
        assert not reading.done()
    async with again(daemon, site) as daemon, daemon.client() as client:
        newest |= {str(key): b"second-1" for key in range(KEYS // 2)}
        assert dict(await reading) == newest
        second = await compact(driven)
        await gone(driven, second)
        await driven.unload()
        assert sorted(await read(driven)) == sorted(newest.items())
        async with asyncio.timeout(PATIENCE_S):
            while [one.begin.ledger_id for one in await client.segments(copies)] != [second]:
                await CLOCK.sleep(0.2)
        (status,) = (await client.status(copies)).topics
        assert not status.losses
        assert await driven_broker.send("DELETE", f"{driven.path}?force=true") == 204
        await emptied(s3_server, s3_bucket)


Change = tuple[str, str]
"""A key and its new value; an empty one deletes it."""


async def change(driven: Driven, changes: list[Change], *, batched: bool) -> None:
    """Send a message for each change, several in a batch or each alone."""

    def send() -> None:
        with pulsar_client(driven.broker.service_url) as client:
            producer = client.create_producer(str(driven.topic), schema=StringSchema(), batching_enabled=batched)
            for key, value in changes:
                producer.send_async(value, None, partition_key=key)
            producer.flush()

    await asyncio.to_thread(send)


async def state(driven: Driven) -> dict[bytes, str]:
    """Return the value of each key as a compacted reader has it at the end of the topic."""
    found: dict[bytes, str] = {}
    for key, value in await read(driven):
        found[key.encode()] = value.decode()
    return {key: value for key, value in found.items() if value}


async def tables(site: Site, daemon: DaemonProcess, *arguments: str) -> None:
    """Run a command of declared tables with the daemon's settings."""
    config = site.directory / "tables.toml"
    config.touch()
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name(arguments[0])), *arguments[1:], "--config", str(config)),
        env=site.process_environment(daemon.grpc_port, daemon.http_port),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()


@pytest.mark.parametrize("form", TableFormat)
async def test_an_upsert_table_has_what_a_compacted_reader_gets(
    site: Site, driven_broker: PulsarBroker, bookkeeper: BookKeeperCluster, form: TableFormat
) -> None:
    """Pulsar's own compaction is the oracle: of keys that change, go and come again, at the same position, twice."""
    async with DaemonProcess(site) as daemon:
        await daemon.serving()
        driven = Driven(driven_broker, bookkeeper, daemon.address)
        await driven.create()
        await driven.offload()
        folder = site.directory / f"public_{driven.namespace}"  # as Iceberg's namespace in it
        first = [(f"k{number % KEYS}", f"first {number}") for number in range(3 * KEYS)]
        gone = [(f"k{number}", "") for number in range(0, KEYS, 3)]
        back = [(f"k{number}", f"back {number}") for number in range(0, KEYS, 6)]
        await change(driven, [*first, *gone, *back], batched=True)
        await compact(driven)
        await change(
            driven, [("k1", "later"), ("k2", ""), ("new", "a"), ("new", "b"), ("k2", "again"), ("k4", "")], batched=True
        )
        await driven.cleared()
        name = str(driven.topic).removeprefix("persistent://")
        declared = ("--to", str(folder), "--format", form, "--mode", "upsert")
        await tables(site, daemon, "offloadctl", "tables", "create", name, *declared)
        expected = await state(driven)
        assert len(expected) == KEYS + 1 - len(gone) + len(back) - 1
        assert await current(site, daemon, folder, form) == expected

        await change(driven, [(key, "") for key in ("k1", "new", "never")], batched=False)
        await compact(driven)
        await change(driven, [("k1", "last"), ("k5", "")], batched=False)
        await driven.cleared()
        expected = await state(driven)
        assert (expected[b"k1"], b"k5" in expected, b"new" in expected) == ("last", False, False)
        assert await current(site, daemon, folder, form) == expected


async def current(site: Site, daemon: DaemonProcess, folder: Path, form: TableFormat) -> dict[bytes, str]:
    """Have the table written; return the value of each of its keys."""
    await tables(site, daemon, "offloaderd", "spark", "tables", "run", "--once")
    rows = await asyncio.to_thread(rows_of, form, folder, "t", namespace=folder.name)
    assert len({row["_key"] for row in rows}) == len(rows)
    return {row["_key"]: row["value"] for row in rows}
