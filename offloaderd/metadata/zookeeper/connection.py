"""Life cycle of the connection to ZooKeeper: its sessions start, are suspended, end, and are followed by others.

The client library has threads of its own. Its listener only forwards the state to the loop, where all decisions are
made. Nothing here blocks the loop: the stop of a client blocks, so a short-lived thread calls it.

A session is lost when the server ends it, or when the client was disconnected for as long as the session may last: the
server may have ended it then, which no client can know. If it turns out to be alive, it is closed and followed by a new
one. So a lost session never returns, and its ephemeral nodes are deleted at once.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

import structlog

from offloaderd.core.errors import Closed, Transient
from offloaderd.metadata.port import Session, SessionObserver, SessionState
from offloaderd.metadata.zookeeper.client import Client

log = structlog.get_logger(__name__)

CLOSE_TIMEOUT_S = 10.0
"""Longest wait for a client's threads. Only with a server that hangs do they last, at most as long as a session."""
RESTART_PAUSE_S = 1.0
"""Pause before a client that has died is replaced."""


C = TypeVar("C", bound=Client)


class Connection(Generic[C]):
    """Keeps one client running, and holds the current session."""

    def __init__(
        self,
        make_client: Callable[[], C],
        *,
        servers: str,
        session_timeout_s: float,
        observer: SessionObserver,
        on_connected: Callable[[], None],
    ) -> None:
        """Take the factory of clients; `servers` is for messages. Each ready client calls `on_connected`."""
        self._make_client = make_client
        self._servers = servers
        self._session_timeout_s = session_timeout_s
        self._observer = observer
        self._on_connected = on_connected
        self._client: C | None = None
        self._generation = 0
        self._session: Session | None = None
        self._doubtful_id = ""
        self._live = asyncio.Event()  # also set by close, to end all waits
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._retiring: set[asyncio.Future[None]] = set()

    @property
    def live(self) -> bool:
        """Whether there is a session and its client is connected."""
        return self._live.is_set() and not self._closed

    def check_open(self) -> None:
        """Raise Closed after `close`."""
        if self._closed:
            raise Closed("the metadata store is closed")

    async def open(self, timeout_s: float) -> None:
        """Connect. Raises Transient when no server answers within `timeout_s`, InvalidConfig for malformed servers."""
        try:
            self._start_client()
            async with asyncio.timeout(timeout_s):
                await self.client()
        except TimeoutError:
            await self.close()
            raise Transient(
                f"no ZooKeeper server answered within {timeout_s:g} s: {self._servers}",
                hint=f"start ZooKeeper, or point metadata.servers to it (now {self._servers})",
            ) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the session and all threads. Can be repeated."""
        if not self._closed:
            self._closed = True
            self._cancel_timer()
            if self._session is not None:
                self._session.lost.set()
                self._session = None
            if self._client is not None:
                self._retire(self._client)
                self._client = None
            self._live.set()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while self._retiring:
                    await asyncio.wait(self._retiring)
        except TimeoutError:
            log.warning("metadata.close_slow", servers=self._servers, hint="a server hangs; the thread ends by itself")

    async def client(self) -> C:
        """Return the client of the current session; waits for one. Raises Closed."""
        while not self._live.is_set():
            await self._live.wait()
        self.check_open()
        return self.present()

    def present(self) -> C:
        """Return the client of the current session, while `live`."""
        assert self._client is not None  # noqa: S101 - it is there whenever there is a session
        return self._client

    async def session(self) -> Session:
        """Return the current session, even if suspended; waits for one. Raises Closed."""
        while self._session is None:
            await self.client()
        return self._session

    def _start_client(self) -> None:
        """Start a new client. Its generation tells its events from those of earlier clients."""
        if self._closed:
            return
        self._generation += 1
        client = self._client = self._make_client()
        loop = asyncio.get_running_loop()
        last_answer = partial(self._last_answer, self._generation)

        def listener(state: str) -> None:
            with suppress(RuntimeError):  # the loop is closed, so the state has no use any more
                loop.call_soon_threadsafe(last_answer, state, client.client_id, client.client_state)

        client.add_listener(listener)
        client.start_async()

    def _last_answer(self, generation: int, state: str, client_id: tuple[int, bytes] | None, detail: str) -> None:
        if generation != self._generation or self._closed:
            return
        if state == "CONNECTED":
            if client_id is not None:  # else it is disconnected again, and that state follows
                self._connected(f"{client_id[0] & (1 << 64) - 1:#x}")
        elif state == "SUSPENDED":
            self._suspended()
        else:
            self._cancel_timer()
            self._lose_session()
            if detail != "EXPIRED_SESSION":
                log.error("metadata.client_failed", servers=self._servers, state=detail)
                asyncio.get_running_loop().call_later(RESTART_PAUSE_S, self._replace_client, generation)

    def _connected(self, session_id: str) -> None:
        self._cancel_timer()
        if session_id == self._doubtful_id:
            self._replace_client(self._generation)
            return
        if self._session is None or self._session.session_id != session_id:
            self._lose_session()
            self._session = Session(session_id)
            log.info("metadata.session_started", session_id=session_id, servers=self._servers)
        self._live.set()
        self._observer(SessionState.CONNECTED)
        self._on_connected()

    def _suspended(self) -> None:
        self._live.clear()
        if self._session is not None and self._timer is None:
            log.warning("metadata.session_suspended", session_id=self._session.session_id, servers=self._servers)
            self._observer(SessionState.SUSPENDED)
            self._timer = asyncio.get_running_loop().call_later(self._session_timeout_s, self._doubt)

    def _doubt(self) -> None:
        """Treat the session as lost, since the server may have ended it."""
        self._timer = None
        if self._session is not None:
            self._doubtful_id = self._session.session_id
            self._lose_session()

    def _lose_session(self) -> None:
        self._live.clear()
        if self._session is not None:
            log.error("metadata.session_lost", session_id=self._session.session_id, servers=self._servers)
            self._session.lost.set()
            self._session = None
            self._observer(SessionState.LOST)

    def _replace_client(self, generation: int) -> None:
        """Stop a client, and start another after the end of its session."""
        if generation == self._generation and not self._closed and self._client is not None:
            self._generation += 1
            client, self._client = self._client, None
            self._retire(client).add_done_callback(lambda _: self._start_client())

    def _retire(self, client: C) -> asyncio.Future[None]:
        """Stop a client in a thread; the future is done after the thread's end."""
        loop = asyncio.get_running_loop()
        retired: asyncio.Future[None] = loop.create_future()

        def stop() -> None:
            try:
                client.stop()
                client.close()
            except Exception as error:  # noqa: BLE001 - any error of a client that is not used any more
                log.warning("metadata.close_failed", error=str(error))
            finally:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(ended)

        def ended() -> None:
            if thread.is_alive():
                loop.call_soon(ended)  # this was its last call: it ends within microseconds
            elif not retired.done():
                retired.set_result(None)

        thread = threading.Thread(target=stop, name="zookeeper-close", daemon=True)
        self._retiring.add(retired)
        retired.add_done_callback(self._retiring.discard)
        thread.start()
        return retired

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
