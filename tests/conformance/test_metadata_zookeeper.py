"""What only a real ZooKeeper shows: servers that are away, hang, or refuse; threads; access lists."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ThrottledOpError
from kazoo.security import make_acl, make_digest_acl

from offloaderd.core.aio import each
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Closed, Denied, InvalidConfig, NotFound, OffloaderError, OutcomeUnknown, Transient
from offloaderd.drill.tcp_proxy import Listener
from offloaderd.metadata import nodes
from offloaderd.metadata.port import Create, Versioned
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.metadata.zookeeper import store as adapter
from offloaderd.metadata.zookeeper.reads import TOGETHER_MAX
from offloaderd.metadata.zookeeper.store import NodeFacts, ZooKeeperStore
from offloaderd.standalone.ports import free_ports
from tests.conformance.metadata_stores import Changes, eventually, expire_session, zookeeper_store
from tests.conformance.private_servers import PrivateServer, private_server, readable
from tests.conformance.test_armed_nodes import Armed
from tests.patience import PATIENCE_S
from tests.real.relay import relay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("quick_reconnects")
CLOCK = SystemClock()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[PrivateServer]:
    """A running server."""
    async with private_server(tmp_path) as server:
        yield server


async def test_no_server_at_the_start_is_one_clear_error() -> None:
    """Entering gives up after connect_timeout_s with the servers' names, and leaves no thread behind."""
    threads = set(threading.enumerate())
    port = free_ports(1, CLOCK)[0]
    store = zookeeper_store(f"127.0.0.1:{port},localhost:{port}", "/offloaderd", connect_s=0.5)
    started = CLOCK.monotonic()
    with pytest.raises(Transient) as caught:
        async with store:
            pytest.fail("there is no server")
    assert 0.4 < CLOCK.monotonic() - started < 60
    assert f"127.0.0.1:{port},localhost:{port}" in caught.value.message
    assert "metadata.servers" in caught.value.hint
    assert set(threading.enumerate()) <= threads


async def test_a_server_that_never_greets_is_left_for_the_next_try(zookeeper: str) -> None:
    """The first connection is accepted and stays silent: another is tried long before the session would be over."""
    connections: list[asyncio.StreamWriter] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        if len(connections) == 1:
            await reader.read()
        else:
            await relay(reader, writer, zookeeper)

    async with (
        Listener(greet) as front,
        ZooKeeperStore(
            front.address, "/offloaderd", MetadataSettings(session_timeout_s=30, connect_timeout_s=12)
        ) as store,
    ):
        assert len(connections) > 1
        assert await store.children("/no/such/node") == []


@pytest.mark.parametrize("servers", ["", "host:port", "[::1:2181"])
async def test_malformed_servers_are_a_configuration_error(servers: str) -> None:
    """A list of servers that cannot be parsed is not retried."""
    with pytest.raises(InvalidConfig, match=r"metadata\.servers"):
        async with zookeeper_store(servers, "/offloaderd"):
            pytest.fail("there is no such server")


async def test_no_thread_outlives_the_store(zookeeper: str) -> None:
    """kazoo's threads are there while the store is, and gone at the moment it is closed."""
    threads = set(threading.enumerate())
    async with zookeeper_store(zookeeper, "/offloaderd/threads") as store:
        assert set(threading.enumerate()) - threads
        await store.create("/a", b"", ephemeral=True)
    assert set(threading.enumerate()) <= threads


async def test_the_root_is_created(zookeeper: str) -> None:
    """Two stores of nested roots see each other's nodes where they belong; `/` is a root as well."""
    name = CLOCK.uuid().hex
    async with (
        zookeeper_store(zookeeper, f"/offloaderd/{name}/deep") as deep,
        zookeeper_store(zookeeper, "/") as whole,
        zookeeper_store(zookeeper, f"/offloaderd/{name}") as high,
    ):
        await deep.create("/a/b", b"x")
        assert await high.get("/deep/a/b") == Versioned(b"x", 0)
        assert await whole.get(f"/offloaderd/{name}/deep/a/b") == Versioned(b"x", 0)
        assert "zookeeper" in await whole.children("/")
    async with zookeeper_store(f"{zookeeper}/offloaderd/{name}", "/") as below:  # the servers name the node
        assert await below.get("/deep/a/b") == Versioned(b"x", 0)
        assert await below.children("/") == ["deep"]


async def test_a_parent_that_another_store_makes_meanwhile_is_there(
    zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Daemons that start at once on an empty ZooKeeper make the same nodes."""
    root = f"/offloaderd/{CLOCK.uuid().hex}"
    async with zookeeper_store(zookeeper, root) as store, zookeeper_store(zookeeper, root) as other:
        create, asked = store._create, list[str]()

        async def late(full: str, value: bytes, *, ephemeral: bool = False) -> None:
            asked.append(full)
            if full.endswith("/a/b") and asked.count(full) == 2:
                await other.create("/a/b", b"")
            await create(full, value, ephemeral=ephemeral)

        monkeypatch.setattr(store, "_create", late)
        await store.create("/a/b/c", b"x")
        assert await other.get("/a/b/c") == Versioned(b"x", 0)


async def test_a_change_while_a_watch_is_set_is_not_missed(zookeeper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes right behind the requests that set it."""
    root = f"/offloaderd/{CLOCK.uuid().hex}"
    async with zookeeper_store(zookeeper, root) as store, zookeeper_store(zookeeper, root) as other:
        await store.create("/n", b"")
        arm, fired = store._arm, asyncio.Event()

        async def armed(full: str, watched: adapter._Watched, *, children: bool) -> None:
            await arm(full, watched, children=children)
            if not fired.is_set():
                watched.wakes.append(fired.set)
                await other.replace("/n", b"now", 0)
                await fired.wait()

        monkeypatch.setattr(store, "_arm", armed)
        async with asyncio.timeout(PATIENCE_S), aclosing(store.watch("/n")) as changes:
            await anext(changes)
            await anext(changes)


async def test_watches_are_set_a_few_at_a_time(zookeeper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon has thousands to set after a lost connection: they hold up no write, and each is set in the end."""
    root = f"/offloaderd/{CLOCK.uuid().hex}"
    async with zookeeper_store(zookeeper, root, call_s=PATIENCE_S) as store, asyncio.TaskGroup() as group:
        read, full, go_on, asked = store._read, asyncio.Event(), asyncio.Event(), list[str]()

        async def slow(what: str, start: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - whatever is asked
            asked.append(what)
            if len(asked) == adapter.ARMED_AT_ONCE:
                full.set()
            await go_on.wait()
            return await read(what, start)

        monkeypatch.setattr(store, "_read", slow)
        count = 3 * adapter.ARMED_AT_ONCE
        armed = [group.create_task(store.arm(f"/n{number}", list[int]().clear)) for number in range(count)]
        async with asyncio.timeout(PATIENCE_S):
            await full.wait()
            await store.create("/written", b"")
            assert len(asked) == adapter.ARMED_AT_ONCE
            go_on.set()
            await asyncio.wait(armed)
        assert len(set(asked)) == count


async def test_a_write_without_an_answer_is_unknown_and_read_back_in_order(server: PrivateServer) -> None:
    """A server that hangs: writes are OutcomeUnknown, reads Transient; a later read shows what became of the write."""
    async with (
        zookeeper_store(server.address, "/r", session_s=30, call_s=PATIENCE_S) as patient,
        zookeeper_store(server.address, "/r", session_s=30, call_s=0.5) as store,
    ):
        await patient.create("/n", b"0")
        server.pause()
        for call in (store.create("/a", b""), store.transact([Create("/b", b"")]), store.delete("/n", 7)):
            with pytest.raises(OutcomeUnknown, match="may or may not"):
                await call
        with pytest.raises(OutcomeUnknown):
            await store.replace("/n", b"1", 0)
        with pytest.raises(Transient) as caught:
            await store.get("/n")
        assert not isinstance(caught.value, OutcomeUnknown)
        await _at_most_in_flight(store, adapter.IN_FLIGHT_MAX)
        changes = Changes(store.watch("/n"))
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(changes.run())
            await CLOCK.sleep(0.8)  # past the deadline of one call
            assert changes.count == 0
            server.resume()
            await changes.next()
            waiting.cancel()
        await eventually(lambda: readable(store))
        assert await patient.get("/n") == Versioned(b"1", 1)
        assert await patient.children("/") == ["a", "b", "n"]


async def _at_most_in_flight(store: ZooKeeperStore, limit: int) -> None:
    """Ask a server that hangs for a lot at once, and see how much of it is handed over to kazoo."""
    client = await store._connection.client()
    assert isinstance(client, KazooClient)
    before = len(client._pending) + len(client._queue)

    async def ask() -> None:
        with pytest.raises(Transient):
            await store.sync("/n")

    async with asyncio.TaskGroup() as group:
        for _ in range(3 * limit):
            group.create_task(ask())
        await CLOCK.sleep(0.2)
        assert len(client._pending) + len(client._queue) - before == limit


async def test_reads_of_one_turn_are_few_requests_with_an_answer_each(
    zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes, empty ones, missing ones, lists, one that is forbidden: each read has what it would have alone."""
    sent = list[object]()
    async with zookeeper_store(zookeeper, f"/offloaderd/{CLOCK.uuid().hex}") as store:
        for number in range(TOGETHER_MAX):
            await store.create(f"/all/{number}", b"x" * number)
        await store.replace("/all/1", b"changed", 0)
        client = await store._connection.client()
        assert isinstance(client, KazooClient)
        client.create(f"{store._root}/closed", acl=[make_digest_acl("somebody", "secret", all=True)])
        call, store._reads._together_max = client._call, TOGETHER_MAX

        def noted(request: object, result: object) -> None:
            sent.append(request)
            call(request, result)

        monkeypatch.setattr(client, "_call", noted)
        names = [str(number) for number in range(TOGETHER_MAX + 2)]
        async with asyncio.TaskGroup() as group:
            values = group.create_task(each(names, lambda one: nodes.node(store, f"/all/{one}"), in_flight_max=99))
            lists = group.create_task(each(["/all", "/all/1", "/none"], store.children))
            forbidden = group.create_task(_outcome(store.get("/closed")))
            again = group.create_task(store.children("/all"))
        assert len(sent) == 2
        found = values.result()
        assert found[:3] == [Versioned(b"", 0), Versioned(b"changed", 1), Versioned(b"xx", 0)]
        assert found[-3:] == [Versioned(b"x" * (TOGETHER_MAX - 1), 0), None, None]
        assert lists.result() == [sorted(names[:-2]), [], []]
        assert again.result() == sorted(names[:-2])
        assert isinstance(forbidden.result(), Denied)


async def test_a_read_waits_for_a_server_or_for_the_end_of_the_store(server: PrivateServer) -> None:
    """It is sent when there is a connection again, though nothing else is asked; without one it ends with the store."""

    async def asked_without_a_server() -> asyncio.Task[object]:
        await server.kill()
        while store._connection.live:
            await CLOCK.sleep(0.01)
        waiting = group.create_task(_outcome(store.get("/n")))
        await asyncio.sleep(0)  # noqa: TID251 - gives the loop a turn, measures no time
        return waiting

    async with asyncio.TaskGroup() as group:
        async with server.store(call_s=PATIENCE_S) as store:
            await store.create("/n", b"x")
            waiting = await asked_without_a_server()
            await server.start()
            assert await waiting == Versioned(b"x", 0)
            waiting = await asked_without_a_server()
        assert isinstance(await waiting, Closed)


async def _outcome(call: Coroutine[None, None, object]) -> object:
    try:
        return await call
    except OffloaderError as error:
        return error


async def test_closing_does_not_hang_with_the_server(server: PrivateServer) -> None:
    """A server that hangs delays the end by a session at most, and the threads end with the store."""
    threads = set(threading.enumerate())
    async with zookeeper_store(server.address, "/r", session_s=2) as store:
        await store.create("/a", b"")
        server.pause()
        started = CLOCK.monotonic()
    assert CLOCK.monotonic() - started < 60
    assert set(threading.enumerate()) <= threads
    server.resume()


async def test_watches_that_come_and_go_leave_one_callback(zookeeper: str) -> None:
    """Watching one node again and again neither piles up callbacks in kazoo nor in the store."""
    async with zookeeper_store(zookeeper, f"/offloaderd/{CLOCK.uuid().hex}") as store:
        await store.create("/a", b"")
        for _ in range(20):
            changes = store.watch("/a")
            await anext(changes)
            await changes.aclose()
        client = await store._connection.client()
        assert isinstance(client, KazooClient)
        assert {len(found) for found in client._data_watchers.values()} == {1}
        assert {len(found) for found in client._child_watchers.values()} == {1}
        assert [len(watched.wakes) for watched in store._watched.values()] == [0]
        await expire_session(store)
        await eventually(lambda: _forgotten(store))


async def _forgotten(store: ZooKeeperStore) -> bool:
    return not store._watched


async def test_who_is_armed_watches_the_node_and_not_what_is_below(zookeeper: str) -> None:
    """One watch, however often it is armed; who watches the children beside it hears of them."""
    async with zookeeper_store(zookeeper, "/armed") as store:
        armed = Armed(store)
        await store.create("/a", b"")
        for _ in range(3):
            await armed.arm()
        client = await store._connection.client()
        assert isinstance(client, KazooClient)
        assert [len(found) for found in client._data_watchers.values()] == [1]
        assert not client._child_watchers
        await store.create("/a/b", b"")
        await armed.is_quiet()
        watch = store.watch("/a")
        await anext(watch)
        await store.create("/a/c", b"")
        async with asyncio.timeout(PATIENCE_S):
            await anext(watch)
        await watch.aclose()
        armed.disarm()
        await expire_session(store)
        await eventually(lambda: _forgotten(store))


async def test_who_is_armed_is_told_although_the_watch_was_refused_at_first(
    zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is overloaded keeps the connection, so nothing else would set the watch later."""
    async with zookeeper_store(zookeeper, f"/offloaderd/{CLOCK.uuid().hex}") as store:
        client = await store._connection.client()
        assert isinstance(client, KazooClient)
        exists, refusals = client.exists_async, [ThrottledOpError(), ThrottledOpError()]

        def overloaded(path: str, watch: object = None) -> object:
            if not refusals:
                return exists(path, watch)
            refused = client.handler.async_result()
            refused.set_exception(refusals.pop())
            return refused

        monkeypatch.setattr(client, "exists_async", overloaded)
        armed = Armed(store)
        await armed.arm()
        assert not refusals
        await store.create("/a", b"")
        await armed.told()


async def test_facts_of_a_node_are_its_last_change_and_whether_all_may_change_it(zookeeper: str) -> None:
    """The time is the server's of the last write; a node that others may only read is not writable."""
    name = CLOCK.uuid().hex
    async with zookeeper_store(zookeeper, f"/offloaderd/{name}") as store:
        await store.create("/a", b"")
        client = await store._connection.client()
        assert isinstance(client, KazooClient)
        full = f"/offloaderd/{name}/a"
        stat = await asyncio.to_thread(client.exists, full)
        assert await store.about("/a") == NodeFacts(stat.mtime, writable=True)
        await asyncio.to_thread(client.set_acls, full, [make_acl("world", "anyone", read=True)])
        assert await store.about("/a") == NodeFacts(stat.mtime, writable=False)
        with pytest.raises(NotFound):
            await store.about("/b")


async def test_an_access_list_that_forbids_it_is_denied(zookeeper: str) -> None:
    """Reading, writing and creating below a node of somebody else are Denied, alone and in a transaction."""
    name = CLOCK.uuid().hex
    async with zookeeper_store(zookeeper, f"/offloaderd/{name}") as store:
        await store.create("/locked", b"")
        client = await store._connection.client()
        assert isinstance(client, KazooClient)
        locked = f"/offloaderd/{name}/locked"
        client.set_acls_async(locked, [make_digest_acl("someone", "else", all=True)])
        for call in (
            store.get("/locked"),
            store.children("/locked"),
            store.replace("/locked", b"", 0),
            store.create("/locked/a", b""),
            store.transact([Create("/b", b""), Create("/locked/a", b"")]),
        ):
            with pytest.raises(Denied) as caught:
                await call
            assert "locked" in caught.value.message
            assert "rights" in caught.value.hint
        with pytest.raises(Denied):
            await anext(store.watch("/locked"))
        assert await store.children("/") == ["locked"]
        with pytest.raises(Denied):
            async with zookeeper_store(zookeeper, f"/offloaderd/{name}/locked/below"):
                pytest.fail("there can be no such root")
