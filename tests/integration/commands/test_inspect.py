"""Bit rot as operators meet it: a real daemon and a real S3 server; what verify, scrub, explain and readers say."""

from __future__ import annotations

import json
import signal
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from offloaderd.core.model import Position
from offloaderd.objects import keys
from tests.integration.appending import append_to
from tests.integration.command_line import ran
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.integration.servers.test_upkeep import PREFIX, TOPICS, entries, offload, read_all, stores
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from offloaderd.client import DaemonClient
    from offloaderd.objects.port import SegmentStore
    from offloaderd.protocol.v1 import admin_pb2, inspect_pb2
    from tests.servers import S3Server

TOPIC = TOPICS[0]
COUNT = 2500


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site on the test's servers, with small segments, each scrubbed as soon as it is seen."""
    found = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    found.settings["objects"] = {"prefix": PREFIX}
    found.settings["offload"] = {"segment_bytes_max": 60_000, "block_bytes": 8192}
    found.settings["scrub"] = {"first_after_s": 0, "interval_s": 3600}
    return found


async def spoil(objects: SegmentStore, segments: list[admin_pb2.Segment]) -> dict[str, str]:
    """Damage an object of each of the first four segments; returns kind by key."""
    ids = [UUID(segment.segment_id) for segment in segments]
    data, index, manifest, short = (
        keys.SegmentKeys(PREFIX, ids[0]).data,
        keys.SegmentKeys(PREFIX, ids[1]).index,
        keys.SegmentKeys(PREFIX, ids[2]).manifest,
        keys.SegmentKeys(PREFIX, ids[3]).data,
    )
    for key, at in ((data, 9000), (index, 60), (manifest, 100)):
        info, body = await objects.head(key), bytearray(await objects.get(key))
        body[at] ^= 0x10
        await objects.put(key, bytes(body), metadata=info.metadata)
    info = await objects.head(short)
    await objects.put(short, (await objects.get(short))[:10_000], metadata=info.metadata)
    return {data: "block", index: "index", manifest: "manifest", short: "size"}


async def test_bit_rot_is_found_by_all_and_served_by_none(site: Site) -> None:
    """Four kinds of damage: verify names them, the scrub finds them, and readers get the source's entries instead."""
    async with DaemonProcess(site) as daemon:
        async with daemon.client() as client:
            await client.enable(TOPIC)
            await append_to(client, TOPIC, entries(COUNT, TOPIC))
            await offload(client, TOPIC)
            segments = list(await client.segments(TOPIC))
            await explained_to_the_byte(client, site, segments)
            assert await flaws_of(client) == {}
            layout = await client.layout(TOPIC)
            held = {one.kind: (one.entries, len(one.extents), one.problem) for one in layout.holders}
            assert layout.entries == COUNT
            assert held["source"] == held["place"] == (COUNT, 1, "")
        daemon.signal(signal.SIGTERM)
        assert await daemon.ended() == 0
    assert len(segments) >= 4
    code, lines = await verify_lines(site, "--against-map")
    assert (code, lines[-1]["summary"]["problems"], lines[0]["segments"]) == (0, 0, len(segments))
    async with stores(site) as (objects, _):
        spoilt = await spoil(objects, segments)
    for words in ((), ("--against-map",)):
        code, lines = await verify_lines(site, *words)
        assert code == 1
        found = {flaw["key"]: flaw["kind"] for line in lines[:-1] for flaw in line["flaws"] if flaw["kind"] != "gap"}
        assert found == spoilt
    kept = [one for line in lines[:-1] for one in line["ledgers"]]
    assert {one["fate"] for one in kept} == {"kept"}
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        assert await read_all(client, TOPIC) == entries(COUNT, TOPIC)
        assert await flaws_of(client) == spoilt
        seen = await scrubbed(client, segments)
        assert [bool(one.place.verified_flaws) for one in seen] == [True] * 4 + [False] * (len(segments) - 4)
        assert "checksum" in seen[0].place.verified_flaw
        assert seen[0].grant.revoked_ms
        assert "its copy was found damaged" in seen[0].grant.revoked_reason  # by the first who looked


async def explained_to_the_byte(client: DaemonClient, site: Site, segments: list[admin_pb2.Segment]) -> None:
    """Every hundredth entry is where explain says."""
    wanted = entries(COUNT, TOPIC)
    before = 0
    async with stores(site) as (objects, _):
        for segment in segments:
            begin = Position(segment.begin.ledger_id, segment.begin.entry_id)
            if segment.begin.ledger_id == segment.end.ledger_id:
                for step in range(0, segment.entries, 100):
                    place = (await client.explain(TOPIC, begin._replace(entry_id=begin.entry_id + step))).place
                    payload = await objects.get(place.data_key, place.payload_offset, place.payload_bytes)
                    assert payload == wanted[before + step]
            before += segment.entries
    beyond = await client.explain(TOPIC, Position(10**6, 0))
    assert beyond.state == "beyond-the-end"


async def verify_lines(site: Site, *words: str) -> tuple[int, list[Any]]:
    """Run `offloaderd verify --json`; returns the exit code and the lines."""
    code, out, err = await ran(site, "offloaderd", "verify", "--json", *words)
    assert "Traceback" not in err
    return code, [json.loads(line) for line in out.splitlines()]


async def flaws_of(client: DaemonClient) -> dict[str, str]:
    """Have the daemon verify the topic; returns kind by key of what is wrong."""
    found = {}
    async with aclosing(client.verify(TOPIC, timeout_s=PATIENCE_S)) as events:
        async for event in events:
            for flaw in event.segment.flaws if event.HasField("segment") else event.between.flaws:
                if flaw.is_problem:
                    found[flaw.key] = flaw.kind
    return found


async def scrubbed(client: DaemonClient, segments: list[admin_pb2.Segment]) -> list[inspect_pb2.ExplainResponse]:
    """Wait until the scrub has been everywhere; returns the explanation of each segment's first entry."""
    deadline = CLOCK.monotonic() + PATIENCE_S
    while True:
        begins = [Position(segment.begin.ledger_id, segment.begin.entry_id) for segment in segments]
        found = [await client.explain(TOPIC, begin) for begin in begins]
        if all(one.place.verified_ms for one in found):
            return found
        assert CLOCK.monotonic() < deadline, "the scrub does not come to its end"
        await CLOCK.sleep(0.3)
