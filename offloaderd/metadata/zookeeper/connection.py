"""Life cycle of the connection to ZooKeeper: sessions come, are suspended, get lost and are followed by others.

The client library runs threads of its own. Rules: its listener only forwards the state to the loop, where everything
is decided; nothing here blocks the loop (stopping a client does block, so a short-lived thread does it).

A session is lost when the server says so, or when the client has been disconnected for as long as the session may
last: then the server may have ended it, though nobody can say. Should it turn out to be alive after all, it is closed
and a new one takes its place: what was called lost never comes back, and its ephemeral nodes go at once.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

import structlog

from offloaderd.core.errors import Closed, Transient
from offloaderd.metadata.port import SessionObserver, SessionState, StoreSession
from offloaderd.metadata.zookeeper.kazoo_types import Client

log = structlog.get_logger(__name__)

CLOSE_TIMEOUT_S = 10.0
"""Longest wait for a client's threads; only a server that hangs makes them linger, and no longer than a session."""
RESTART_PAUSE_S = 1.0
"""Pause before a client that has died is replaced."""


C = TypeVar("C", bound=Client)


class Connection(Generic[C]):
    """Keeps one client running, and says which session is the current one."""

    def __init__(
        self,
        make_client: Callable[[], C],
        *,
        servers: str,
        session_timeout_s: float,
        observer: SessionObserver,
        on_connected: Callable[[], None],
    ) -> None:
        """Take the maker of clients. `servers` is for messages; `on_connected` is called whenever a client is ready."""
        self._make_client = make_client
        self._servers = servers
        self._session_timeout_s = session_timeout_s
        self._observer = observer
        self._on_connected = on_connected
        self._client: C | None = None
        self._generation = 0
        self._session: StoreSession | None = None
        self._doubtful_id = ""
        self._live = asyncio.Event()  # also set by close, to wake whoever waits
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._retiring: set[asyncio.Future[None]] = set()

    @property
    def live(self) -> bool:
        """Whether there is a session and its client is connected."""
        return self._live.is_set() and not self._closed

    def check_open(self) -> None:
        """Raise Closed once it has been closed."""
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
        """End the session and all threads; repeating is harmless."""
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
        """Return the client of the current session, waiting while there is none. Raises Closed."""
        while not self._live.is_set():
            await self._live.wait()
        self.check_open()
        assert self._client is not None  # noqa: S101 - it is there whenever there is a session
        return self._client

    async def session(self) -> StoreSession:
        """Return the current session, suspended or not, waiting while there is none. Raises Closed."""
        while self._session is None:
            await self.client()
        return self._session

    def _start_client(self) -> None:
        """Start a new client, whose events are told from those of the ones before by its generation."""
        if self._closed:
            return
        self._generation += 1
        client = self._client = self._make_client()
        loop = asyncio.get_running_loop()
        last_answer = partial(self._last_answer, self._generation)

        def listener(state: str) -> None:
            with suppress(RuntimeError):  # the loop has been closed: nobody is left to care
                loop.call_soon_threadsafe(last_answer, state, client.client_id, client.client_state)

        client.add_listener(listener)
        client.start_async()

    def _last_answer(self, generation: int, state: str, client_id: tuple[int, bytes] | None, detail: str) -> None:
        """Take note of a client's new state."""
        if generation != self._generation or self._closed:
            return
        if state == "CONNECTED":
            if client_id is not None:  # else it is disconnected again, which comes next
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
            self._session = StoreSession(session_id)
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
        """Give a session up that the server may have ended."""
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
        """Stop a client, and start another once its session has ended."""
        if generation == self._generation and not self._closed and self._client is not None:
            self._generation += 1
            client, self._client = self._client, None
            self._retire(client).add_done_callback(lambda _: self._start_client())

    def _retire(self, client: C) -> asyncio.Future[None]:
        """Stop a client in a thread of its own; the future is done when the thread is."""
        loop = asyncio.get_running_loop()
        retired: asyncio.Future[None] = loop.create_future()

        def stop() -> None:
            try:
                client.stop()
                client.close()
            except Exception as error:  # noqa: BLE001 - the last words of a client that nobody uses any more
                log.warning("metadata.close_failed", error=str(error))
            finally:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(ended)

        def ended() -> None:
            if thread.is_alive():
                loop.call_soon(ended)  # it has said its last word and is gone within microseconds
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
