"""The MetadataStore port on servers that go away or lag behind: real ones of the test's own, and simulated ones."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import NotFound, OutcomeUnknown, Transient
from offloaderd.metadata.port import Create, SessionState
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from tests.conformance.metadata_stores import Changes, eventually
from tests.conformance.private_servers import Server, private_server, readable
from tests.conformance.simulated import SIMULATED, SimulatedServer, simulated_world
from tests.conformance.test_armed_nodes import Armed
from tests.patience import PATIENCE_S
from tests.simulation.zookeeper import LAG_S, ZooKeeper

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from offloaderd.metadata.port import MetadataStore

pytestmark = pytest.mark.usefixtures("quick_reconnects")
CLOCK = SystemClock()


def now() -> float:
    """Seconds of the loop, which is the simulation's or a real one."""
    return asyncio.get_running_loop().time()


@pytest.fixture(params=["zookeeper", SIMULATED])
def adapter(request: pytest.FixtureRequest) -> str:
    """The adapter under test."""
    return str(request.param)


@pytest.fixture
async def server(adapter: str, tmp_path: Path) -> AsyncIterator[Server]:
    """A running server."""
    if adapter == SIMULATED:
        with simulated_world() as world:
            yield SimulatedServer(world)
        return
    async with private_server(tmp_path) as server:
        yield server


@asynccontextmanager
async def watching(store: MetadataStore, path: str) -> AsyncIterator[Changes]:
    """A running watch."""
    changes = Changes(store.watch(path))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(changes.run())
        await changes.next()
        yield changes
        task.cancel()


async def test_calls_fail_fast_while_the_server_is_away_and_work_when_it_is_back(server: Server) -> None:
    """A short outage: Transient within the deadline, then the same session, its nodes, and re-armed watches."""
    states: list[SessionState] = []
    async with (
        server.store(call_s=0.5, observer=states.append) as store,
        server.store() as other,
    ):
        await store.create("/mine", b"", ephemeral=True)
        session = await store.session()
        async with watching(store, "/watched") as changes:
            await server.kill()
            started = now()
            await eventually(lambda: _suspended(states))
            for call in (store.get("/mine"), store.create("/a", b""), store.transact([Create("/b", b"")])):
                with pytest.raises(Transient, match="no connection") as caught:
                    await call
                assert not isinstance(caught.value, OutcomeUnknown)
                assert server.address in caught.value.hint
            assert now() - started < 25
            assert await store.session() is session
            async with watching(store, "/later") as later:
                await server.start()
                await later.next()
            await changes.next()
            await eventually(lambda: readable(store))
            assert await store.session() is session
            assert not session.lost.is_set()
            assert await store.children("/") == ["mine"]
            await eventually(lambda: readable(other))
            await other.create("/watched", b"")
            await changes.next()
            await other.replace("/watched", b"", 0)
            await changes.next()
    assert states == [SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.CONNECTED]


async def _suspended(states: list[SessionState]) -> bool:
    return states[-1] is SessionState.SUSPENDED


async def test_a_session_is_lost_once_it_cannot_be_known_to_live(server: Server) -> None:
    """Away for longer than a session: lost while still away; then another session, without the old one's nodes."""
    states: list[SessionState] = []
    async with server.store(session_s=2, call_s=0.5, observer=states.append) as store:
        await store.create("/mine", b"", ephemeral=True)
        session = await store.session()
        await server.kill()
        started = now()
        async with asyncio.timeout(PATIENCE_S):
            await session.lost.wait()
        assert 1.5 < now() - started < 60
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await store.session()
        await server.start()
        async with asyncio.timeout(PATIENCE_S):
            following = await store.session()
        assert following.session_id != session.session_id
        await eventually(lambda: _gone(store, "/mine"))
        await store.create("/mine", b"again", ephemeral=True)
        assert not following.lost.is_set()
    assert states[:3] == [SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST]
    assert states.count(SessionState.LOST) == 1


async def _gone(store: MetadataStore, path: str) -> bool:
    try:
        await store.get(path)
    except NotFound:
        return True
    return False


async def test_a_connection_lost_in_the_middle_of_a_write_is_unknown(server: Server) -> None:
    """The server dies with the request: the write is OutcomeUnknown at once, the read Transient."""
    async with server.store(call_s=20) as store:
        server.pause()

        async def write() -> None:
            with pytest.raises(OutcomeUnknown, match=r"(?i)connection ?los[st]"):
                await store.create("/a", b"")

        async def read() -> None:
            with pytest.raises(Transient, match=r"(?i)connection ?los[st]") as caught:
                await store.get("/a")
            assert not isinstance(caught.value, OutcomeUnknown)

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            group.create_task(write())
            group.create_task(read())
            await CLOCK.sleep(0.2)
            await server.kill()


# --- servers that lag behind: the real one is alone and never does, so these hold of it, too --------------------------


@asynccontextmanager
async def behind(server: Server) -> AsyncIterator[ZooKeeper | ZooKeeperStore]:
    """A store on a server that lags behind, where there is such a one."""
    async with server.store() as store:
        if isinstance(store, ZooKeeper):
            store.lag_s = LAG_S
        assert isinstance(store, ZooKeeper | ZooKeeperStore)
        yield store


async def test_what_was_seen_is_seen_again(server: Server) -> None:
    """A server may show what is not so any more, but nothing that is older than what its client has seen or written."""
    last, stale = 50, 0
    async with server.store() as writer, behind(server) as reader:
        await writer.create("/n", b"0")
        await writer.create("/own", b"")
        await reader.sync("/n")
        seen = [int((await reader.get("/n")).value)]
        for number in range(last):
            assert await writer.replace("/n", b"%d" % (number + 1), number) == number + 1
            seen.append(int((await reader.get("/n")).value))
            stale += seen[-1] <= number
        assert seen == sorted(seen)
        assert (stale > 0) is isinstance(reader, ZooKeeper)
        await reader.replace("/own", b"", 0)
        assert (await reader.get("/n")).value == b"%d" % last


async def test_a_watch_on_a_server_that_lags_behind_misses_nothing(server: Server) -> None:
    """What came about before the watch was set, and is shown only later, is told as well."""
    async with server.store() as writer, behind(server) as reader:
        await writer.create("/n", b"old")
        await reader.sync("/n")
        await writer.replace("/n", b"new", 0)
        async with asyncio.timeout(PATIENCE_S), aclosing(reader.watch("/n")) as changes:
            async for _ in changes:
                if (await reader.get("/n")).value == b"new":
                    break


async def test_who_is_armed_on_a_server_that_lags_behind_is_told(server: Server) -> None:
    """Of the node's creation, which came before; a child that comes does not change the node."""
    async with server.store() as writer, behind(server) as reader:
        armed = Armed(reader, "/n")
        await writer.create("/n", b"")
        await armed.arm()
        async with asyncio.timeout(PATIENCE_S):
            while not await _is_there(reader, "/n"):
                await armed.told()
                await armed.arm()
        await writer.create("/n/child", b"")
        await eventually(lambda: _is_there(reader, "/n/child"))
        await armed.is_quiet()


async def _is_there(store: MetadataStore, path: str) -> bool:
    return not await _gone(store, path)
