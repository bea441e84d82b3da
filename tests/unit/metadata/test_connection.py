"""Life cycle of the connection, with a client that does what a test says."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Closed, InvalidConfig, Transient
from offloaderd.metadata.port import SessionState
from offloaderd.metadata.zookeeper import connection as module
from offloaderd.metadata.zookeeper.connection import Connection
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

REAL_TIME = "kazoo's threads"

CLOCK = SystemClock()
CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


class FakeClient:
    """Stands for kazoo's client; its listener is called on another thread, as kazoo does."""

    def __init__(self) -> None:
        self.client_id: tuple[int, bytes] | None = None
        self.client_state = "CLOSED"
        self.started = False
        self.stopped = threading.Event()
        self.closed = False
        self.may_stop = threading.Event()
        self.may_stop.set()
        self.stop_error: Exception | None = None
        self._listener: Callable[[str], None] | None = None

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Keep it."""
        self._listener = listener

    def start_async(self) -> object:
        """Note it."""
        self.started = True
        return None

    def stop(self) -> None:
        """Block until the test lets it."""
        self.may_stop.wait(PATIENCE_S)
        self.stopped.set()
        self.tell("LOST", "CLOSED")
        if self.stop_error is not None:
            raise self.stop_error

    def close(self) -> None:
        """Note it."""
        self.closed = True

    def connected(self, session: int) -> None:
        """Be connected."""
        self.client_id = (session, b"")
        self.tell("CONNECTED", "CONNECTED")

    def suspended(self) -> None:
        """Be disconnected."""
        self.client_id = None
        self.tell("SUSPENDED", "CONNECTING")

    def expired(self) -> None:
        """Learn that the session has ended."""
        self.client_id = None
        self.tell("LOST", "EXPIRED_SESSION")

    def tell(self, state: str, detail: str) -> None:
        """Call the listener on a thread of its own."""
        self.client_state = detail
        listener = self._listener
        assert listener is not None
        thread = threading.Thread(target=listener, args=(state,))
        thread.start()
        thread.join()


class Rig:
    """A connection over fake clients, and what it said."""

    def __init__(self, *, session_timeout_s: float = 30.0) -> None:
        self.clients: list[FakeClient] = []
        self.states: list[SessionState] = []
        self.wakes = 0
        self.connection: Connection[FakeClient] = Connection(
            self._make,
            servers="zk:2181",
            session_timeout_s=session_timeout_s,
            observer=self.states.append,
            on_connected=self._woken,
        )

    def _make(self) -> FakeClient:
        self.clients.append(FakeClient())
        return self.clients[-1]

    def _woken(self) -> None:
        self.wakes += 1

    async def open(self) -> FakeClient:
        """Open with session 1."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.connection.open(PATIENCE_S))
            await settle()
            self.clients[0].connected(1)
        return self.clients[0]

    async def until_clients(self, count: int) -> FakeClient:
        """Wait for the client of this number."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.clients) < count:
                await CLOCK.sleep(0.005)
        return self.clients[count - 1]


async def settle() -> None:
    """Let everything that is ready run."""
    for _ in range(5):
        await CLOCK.sleep(0)


async def test_opening_waits_for_the_first_session() -> None:
    """The session's id is the client's, in hexadecimal, unsigned."""
    rig = Rig()
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(rig.connection.open(PATIENCE_S))
        await settle()
        assert rig.clients[0].started
        assert not opening.done()
        assert not rig.connection.live
        rig.clients[0].connected(-1)
    assert rig.connection.live
    assert (await rig.connection.session()).session_id == "0xffffffffffffffff"
    assert rig.states == [CONNECTED]
    await rig.connection.close()


async def test_opening_in_vain_stops_the_client() -> None:
    """Time-out and cancellation both leave nothing running."""
    rig = Rig()
    with pytest.raises(Transient, match="zk:2181"):
        await rig.connection.open(0.01)
    assert rig.clients[0].stopped.is_set()
    assert rig.clients[0].closed
    rig = Rig()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await rig.connection.open(PATIENCE_S)
    assert rig.clients[0].stopped.is_set()


async def test_a_client_that_cannot_be_made_is_told() -> None:
    """What the maker raises comes out of open, and closing afterwards is harmless."""

    def fail() -> FakeClient:
        raise InvalidConfig("no")

    connection = Connection(fail, servers="", session_timeout_s=1, observer=lambda _: None, on_connected=lambda: None)
    with pytest.raises(InvalidConfig):
        await connection.open(1)
    await connection.close()


async def test_a_short_interruption_keeps_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspended and back with the same id: the same Session, never lost, and watches are woken."""
    rig = Rig(session_timeout_s=PATIENCE_S)
    client = await rig.open()
    session = await rig.connection.session()
    client.suspended()
    await settle()
    assert not rig.connection.live
    assert await rig.connection.session() is session
    client.connected(1)
    await settle()
    assert rig.connection.live
    loop = asyncio.get_running_loop()
    later = loop.time() + 2 * PATIENCE_S
    monkeypatch.setattr(loop, "time", lambda: later)
    await settle()
    assert not session.lost.is_set()
    assert rig.states == [CONNECTED, SUSPENDED, CONNECTED]
    assert rig.wakes == 2
    await rig.connection.close()


async def test_an_expired_session_is_followed_by_a_new_one() -> None:
    """Expiry sets lost at once; the same client brings the next session."""
    rig = Rig()
    client = await rig.open()
    session = await rig.connection.session()
    client.suspended()
    client.expired()
    await settle()
    assert session.lost.is_set()
    client.connected(2)
    await settle()
    following = await rig.connection.session()
    assert following.session_id == "0x2"
    assert not following.lost.is_set()
    assert rig.states == [CONNECTED, SUSPENDED, LOST, CONNECTED]
    assert len(rig.clients) == 1
    await rig.connection.close()


async def test_a_session_that_changed_unseen_is_lost_as_well() -> None:
    """Another id without a word of expiry still ends the session before it."""
    rig = Rig()
    client = await rig.open()
    session = await rig.connection.session()
    client.connected(2)
    await settle()
    assert session.lost.is_set()
    assert rig.states == [CONNECTED, LOST, CONNECTED]
    await rig.connection.close()


async def test_a_session_given_up_never_comes_back() -> None:
    """Disconnected for a session's time it is lost; when it turns out alive it is closed and a new client starts."""
    rig = Rig(session_timeout_s=0.05)
    client = await rig.open()
    session = await rig.connection.session()
    client.suspended()
    async with asyncio.timeout(PATIENCE_S):
        await session.lost.wait()
    assert rig.states == [CONNECTED, SUSPENDED, LOST]
    client.may_stop.clear()
    client.connected(1)
    await settle()
    assert not rig.connection.live
    assert len(rig.clients) == 1
    client.may_stop.set()
    second = await rig.until_clients(2)
    assert client.stopped.is_set()
    assert client.closed
    second.connected(2)
    await settle()
    assert (await rig.connection.session()).session_id == "0x2"
    client.connected(1)  # an echo of the client that is no more
    client.expired()
    await settle()
    assert (await rig.connection.session()).session_id == "0x2"
    assert rig.states == [CONNECTED, SUSPENDED, LOST, CONNECTED]
    await rig.connection.close()


async def test_a_session_given_up_that_did_expire_is_told_once() -> None:
    """The server's word after ours changes nothing, and the same client goes on."""
    rig = Rig(session_timeout_s=0.05)
    client = await rig.open()
    session = await rig.connection.session()
    client.suspended()
    async with asyncio.timeout(PATIENCE_S):
        await session.lost.wait()
    client.expired()
    client.connected(2)
    await settle()
    assert (await rig.connection.session()).session_id == "0x2"
    assert rig.states == [CONNECTED, SUSPENDED, LOST, CONNECTED]
    assert len(rig.clients) == 1
    await rig.connection.close()


async def test_a_client_that_died_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose thread has ended, for whatever reason, is followed by another."""
    monkeypatch.setattr(module, "RESTART_PAUSE_S", 0.01)
    rig = Rig()
    client = await rig.open()
    session = await rig.connection.session()
    client.stop_error = RuntimeError("it is dead already")
    client.tell("LOST", "CLOSED")
    await settle()
    assert session.lost.is_set()
    second = await rig.until_clients(2)
    second.connected(2)
    await settle()
    assert rig.connection.live
    assert rig.states == [CONNECTED, LOST, CONNECTED]
    await rig.connection.close()


async def test_closing_wakes_whoever_waits() -> None:
    """Callers that wait for a client or a session get Closed; the session counts as lost; twice is harmless."""
    rig = Rig(session_timeout_s=0.01)
    client = await rig.open()
    session = await rig.connection.session()
    client.suspended()
    await session.lost.wait()

    async def wait(call: Callable[[], object]) -> None:
        with pytest.raises(Closed):
            await call()  # type: ignore[misc]

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(wait(rig.connection.client))
        group.create_task(wait(rig.connection.session))
        await settle()
        await rig.connection.close()
    await rig.connection.close()
    assert client.closed
    assert not rig.connection.live
    assert rig.states == [CONNECTED, SUSPENDED, LOST]


async def test_closing_an_open_session_is_no_loss() -> None:
    """The holder of the session learns that it is over; the metric of lost sessions does not count it."""
    rig = Rig()
    await rig.open()
    session = await rig.connection.session()
    await rig.connection.close()
    assert session.lost.is_set()
    assert rig.states == [CONNECTED]


async def test_closing_while_a_client_is_being_replaced() -> None:
    """No new client starts, and the old one's thread is waited for."""
    rig = Rig(session_timeout_s=0.01)
    client = await rig.open()
    session = await rig.connection.session()
    client.suspended()
    await session.lost.wait()
    client.may_stop.clear()
    client.connected(1)
    await settle()
    async with asyncio.TaskGroup() as group:
        closing = group.create_task(rig.connection.close())
        await settle()
        assert not closing.done()
        client.may_stop.set()
    assert client.closed
    assert len(rig.clients) == 1


async def test_closing_gives_up_on_a_client_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never answers cannot keep the daemon from ending."""
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.05)
    rig = Rig()
    client = await rig.open()
    client.may_stop.clear()
    async with asyncio.timeout(PATIENCE_S):
        await rig.connection.close()
    assert not client.closed
    client.may_stop.set()
    client.stopped.wait(PATIENCE_S)


async def test_a_connection_that_is_gone_again_is_no_session() -> None:
    """A client that lost the connection before it was asked for its id is waited for."""
    rig = Rig()
    client = await rig.open()
    client.suspended()
    client.tell("CONNECTED", "CONNECTED")
    await settle()
    assert not rig.connection.live
    client.connected(1)
    await settle()
    assert rig.connection.live
    await rig.connection.close()
