"""Metadata that went back, and a second deployment at the same place: a real ZooKeeper and a real S3 server."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.ledgers.book import RollLimits
from offloaderd.ledgers.embedded.store import EmbeddedLedgers
from offloaderd.metadata import paths
from offloaderd.objects import keys
from tests.integration.appending import append_to
from tests.integration.command_line import ran
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.integration.servers.test_upkeep import (
    PREFIX,
    command,
    entries,
    gc,
    marked,
    offload,
    read_all,
    stores,
    tree,
)

if TYPE_CHECKING:
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from offloaderd.metadata.port import MetadataStore
    from tests.servers import S3Server

TOPIC, THEIRS = TopicName.parse("public/default/orders"), TopicName.parse("public/default/invoices")
FOLDER = paths.topic(TOPIC)
COUNT = 1500


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site whose topics stream into one large segment over several ledgers."""
    found = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    found.settings["objects"] = {"prefix": PREFIX}
    return found


async def backup(store: MetadataStore) -> dict[str, bytes]:
    """Return the topic's nodes as a backup of ZooKeeper has them."""
    found = await tree(store, FOLDER)
    return {path: value for path, value in found.items() if path != paths.owner(TOPIC)}


async def restore(store: MetadataStore, nodes: dict[str, bytes]) -> None:
    """Put the topic's nodes back as they were; nobody works on it."""
    for path in sorted(await tree(store, FOLDER), reverse=True):
        await store.delete(path)
    for path in sorted(nodes):
        await store.create(path, nodes[path])


async def stopped(daemon: DaemonProcess) -> None:
    """End a daemon as an operator does."""
    daemon.signal(signal.SIGTERM)
    assert await daemon.ended() == 0


async def opened(client: DaemonClient, topic: TopicName, count: int) -> None:
    """Wait until so many entries are in the topic's open segment."""
    while (await client.status(topic)).topics[0].open_segment_entries < count:
        await CLOCK.sleep(0.05)


async def shown(site: Site, daemon: DaemonProcess, *words: str) -> Any:  # noqa: ANN401 - a document
    """Run `offloadctl ... --json` against a daemon; returns the document."""
    code, out, err = await ran(site, "offloadctl", *words, "--json", "--address", daemon.address)
    assert code == 0, err
    return json.loads(out)


async def test_metadata_that_were_restored_lose_nothing(site: Site) -> None:
    """A segment that was committed since is taken up again; a map that is further back is refused, until rebuilt."""
    async with stores(site) as (objects, metadata):
        async with DaemonProcess(site) as daemon:
            async with daemon.client() as client:
                await client.enable(TOPIC)
                await marked(site, objects)
                await opened(client, TOPIC, 0)
                empty = await backup(metadata)
                await append_to(client, TOPIC, entries(COUNT, TOPIC))
                await opened(client, TOPIC, COUNT)
                begun = await backup(metadata)
                assert paths.attempt(TOPIC) in begun
                await offload(client, TOPIC)
            await stopped(daemon)
        stored = {info.key async for info in objects.list()}
        source = EmbeddedLedgers(site.directory / "ledgers", clock=CLOCK, limits=RollLimits(entries_max=700))
        async with source:
            for info in (await source.ledgers(TOPIC))[:-1]:
                await source.delete(TOPIC, info.ledger_id)
        await restore(metadata, begun)
        async with DaemonProcess(site) as daemon:
            async with daemon.client() as client:
                await daemon.logged('"segment.rolled_forward"')
                await daemon.logged('"segment.committed"')
                assert await read_all(client, TOPIC) == entries(COUNT, TOPIC)
                assert not (await client.status(TOPIC)).topics[0].losses
            await stopped(daemon)
        assert {info.key async for info in objects.list()} == stored
        await restore(metadata, empty)
        async with DaemonProcess(site) as daemon:
            async with daemon.client() as client:
                await daemon.logged('"identity.refused"')
                (refusal,) = (await shown(site, daemon, "identity", "show", str(TOPIC)))["refusals"]
                assert (refusal["kind"], "rebuild" in refusal["hint"]) == ("metadata-went-back", True)
                assert not any(verdict == "deleted" for _, verdict in (await gc(client, apply=True)).values())
                assert {info.key async for info in objects.list()} == stored
                await client.disable(TOPIC)
            await stopped(daemon)
        await restore(metadata, {})
        code, done = await command(site, "rebuild", "--topic", str(TOPIC), "--apply", "--enable")
        assert code == 0, done
        async with DaemonProcess(site) as daemon, daemon.client() as client:
            assert await read_all(client, TOPIC) == entries(COUNT, TOPIC)
            await append_to(client, TOPIC, [b"more"])
            await offload(client, TOPIC)
            assert (await shown(site, daemon, "identity", "show", str(TOPIC)))["refusals"] == []
            assert await read_all(client, TOPIC) == [*entries(COUNT, TOPIC), b"more"]


async def test_two_deployments_at_one_place_leave_each_other_alone(site: Site, tmp_path: Path) -> None:
    """The second one says at its start who is there; no collection takes an object or an upload of the other."""
    (tmp_path / "second").mkdir()
    settings: dict[str, dict[str, object]] = {**site.settings, "metadata": {"root": "/second"}}
    second = replace(site, directory=tmp_path / "second", daemon_id="two", settings=settings)
    async with stores(site) as (objects, _), DaemonProcess(site) as ours, ours.client() as client:
        await client.enable(TOPIC)
        await append_to(client, TOPIC, entries(COUNT, TOPIC))
        await offload(client, TOPIC)
        await append_to(client, TOPIC, [b"open"])
        await opened(client, TOPIC, 1)
        first = (await shown(site, ours, "identity", "show"))["deployment"]
        async with DaemonProcess(second) as theirs, theirs.client() as other:
            await theirs.logged('"place.foreign"')
            assert first in theirs.said()
            await other.enable(THEIRS)
            await append_to(other, THEIRS, entries(COUNT, THEIRS))
            await offload(other, THEIRS)
            await append_to(other, THEIRS, [b"open"])
            await opened(other, THEIRS, 1)
            stray = await objects.create_upload(keys.SegmentKeys(PREFIX, UUID(int=3)).data)
            stored = {info.key async for info in objects.list()}
            uploads = {one.upload_id async for one in objects.list_uploads()}
            assert stray in uploads
            with pytest.raises(OffloaderError, match=first):
                await gc(other, apply=True)
            assert not any(verdict == "deleted" for _, verdict in (await gc(client, apply=True)).values())
            assert {info.key async for info in objects.list()} == stored
            assert {one.upload_id async for one in objects.list_uploads()} == uploads
            assert await read_all(client, TOPIC) == [*entries(COUNT, TOPIC), b"open"]
            assert await read_all(other, THEIRS) == [*entries(COUNT, THEIRS), b"open"]
