"""Where a bookie is: by its registration, anew for each connection, and while ZooKeeper is away."""

from __future__ import annotations

from typing import Literal

import pytest

from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.errors import Transient
from offloaderd.format.pb.bookkeeper.registration_pb2 import BookieServiceInfo
from tests.unit.bookkeeper.fake_bookie import fake_bookie
from tests.unit.bookkeeper.pool_world import ENTRIES, LEDGER, world

OPAQUE = "bk-opaque.5"


def registered(host: str, port: int) -> bytes:
    """Return what a bookie publishes."""
    endpoint = BookieServiceInfo.Endpoint(id="bookie", host=host, port=port, protocol="bookie-rpc")
    return BookieServiceInfo(endpoints=[endpoint]).SerializeToString()


async def test_a_bookie_is_found_by_its_registration() -> None:
    """As writable or as read-only, and anew for each connection: its address may change under its id."""
    async with world() as it, fake_bookie() as moved:
        moved.stored[LEDGER, 0] = b"m" * 40
        with pytest.raises(Transient, match="not registered"):
            await it.pool.read(OPAQUE, LEDGER, 0)
        await it.clock.advance(1)
        it.znodes.nodes[f"/ledgers/available/readonly/{OPAQUE}"] = registered("127.0.0.1", it.bookie.port)
        assert await it.pool.read(OPAQUE, LEDGER, 0) == ENTRIES[0]
        it.bookie.sessions[0].cut()
        await it.ended()
        it.znodes.nodes[f"/ledgers/available/{OPAQUE}"] = registered("127.0.0.1", moved.port)
        assert await it.pool.read(OPAQUE, LEDGER, 0) == b"m" * 40


async def test_a_registration_that_cannot_be_read_is_a_bookie_that_is_away() -> None:
    """It is not the ledger's data that is corrupt."""
    async with world() as it:
        it.znodes.nodes[f"/ledgers/available/{OPAQUE}"] = b"\xff\xff"
        with pytest.raises(Transient, match="no address"):
            await it.pool.read(OPAQUE, LEDGER, 0)


@pytest.mark.parametrize("failure", ["error", "silence"])
async def test_without_zookeeper_the_last_address_serves(failure: Literal["error", "silence"]) -> None:
    """A connection is made anew to where the bookie was; one that was never found cannot be had."""
    async with world(BookkeeperSettings(connect_timeout_s=0.2)) as it:
        it.znodes.nodes[f"/ledgers/available/{OPAQUE}"] = registered("127.0.0.1", it.bookie.port)
        await it.pool.read(OPAQUE, LEDGER, 0)
        it.bookie.sessions[0].cut()
        await it.ended()
        it.znodes.failure = failure
        assert await it.pool.read(OPAQUE, LEDGER, 1) == ENTRIES[1]
        with pytest.raises(Transient):
            await it.pool.read("never.seen", LEDGER, 1)
