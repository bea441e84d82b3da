"""The metadata store over ZooKeeper, by kazoo's `*_async` calls.

Their results become futures of the loop, so no executor and no blocking call is needed. A request is sent only within a
session and a connection, waits at most `call_timeout_s` for its answer, and is never repeated here: the caller decides.
An unsent request fails with Transient, a write that was sent and not answered with OutcomeUnknown. The server carries
out requests in the order in which they are sent, and no read is sent before it is asked for: so a read after an
unanswered write shows its outcome. Reads are sent together (`reads.py`).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Self, TypeVar

from kazoo import exceptions as zk

from offloaderd.core.aio import Event
from offloaderd.core.errors import (
    Conflict,
    Denied,
    InvalidConfig,
    InvalidInput,
    NoSpace,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    Throttled,
    Transient,
)
from offloaderd.metadata import port
from offloaderd.metadata.port import Check, Create, Delete, Replace, Session, SessionObserver, Step, Versioned
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.metadata.zookeeper.client import Read, Result, Transaction, WatchEvent, ZooKeeperClient, make_client
from offloaderd.metadata.zookeeper.connection import Connection
from offloaderd.metadata.zookeeper.reads import Reads

T = TypeVar("T")

IN_FLIGHT_MAX = 64
"""Most unanswered requests. At 278 the pipe that wakes kazoo's thread is full, and kazoo blocks the loop."""
REARM_PAUSE_S = 0.2
ARMED_AT_ONCE = 16
"""Watches of each of two kinds that are set at a time; the others wait without a limit. A daemon has thousands to set
after a lost connection: all at once they would hold up its writes, and run into their own time limits."""
CREATE_TRIES = 3
_CHANGES = 2 | 4 | 8 | 16
"""Rights to write, create, delete and administer, as bits of an access list."""

_CERTAIN: dict[type[Exception], tuple[type[OffloaderError], str]] = {
    zk.NoNodeError: (NotFound, "there is no such node"),
    zk.NodeExistsError: (Conflict, "it exists"),
    zk.BadVersionError: (Conflict, "it has another version"),
    zk.NotEmptyError: (Conflict, "it has children"),
    zk.NoChildrenForEphemeralsError: (Conflict, "the node above is ephemeral and cannot have children"),
    zk.NoAuthError: (Denied, "its access list forbids it"),
    zk.AuthFailedError: (Denied, "ZooKeeper refused our credentials"),
    zk.SessionClosedRequireSaslError: (Denied, "ZooKeeper wants clients to authenticate"),
    zk.QuotaExceededError: (NoSpace, "the node's quota is used up"),
    zk.ThrottledOpError: (Throttled, "ZooKeeper is overloaded"),
    zk.NotReadOnlyCallError: (Transient, "the server has lost its quorum"),
    zk.SessionMovedError: (Transient, "the session has moved to another server"),
    zk.BadArgumentsError: (InvalidInput, "ZooKeeper does not accept the path"),
    zk.InvalidACLError: (InvalidInput, "ZooKeeper does not accept the access list"),
    zk.UnimplementedError: (InvalidConfig, "this ZooKeeper is too old"),
}
"""Answers after which a request was certainly not carried out."""
_HINTS: dict[type[OffloaderError], str] = {
    Denied: "give the daemon's user (metadata.username, or its certificate) all rights below metadata.root",
    NoSpace: "raise the quota below metadata.root",
    Throttled: "slow down and try again",
}


class NodeFacts(NamedTuple):
    """Metadata of a node: `modified_ms` by the leader's clock; `writable` by everybody who connects."""

    modified_ms: int
    writable: bool


class _Watched:
    """One watched node: kazoo's callback, and our callbacks that it calls.

    One per path: kazoo cannot remove a callback before its event, so repeated watches of a path have to share it.
    """

    __slots__ = ("_loop", "wakes")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.wakes: list[Callable[[], None]] = []
        self._loop = loop

    def wake(self) -> None:
        """Call all callbacks."""
        for wake in self.wakes.copy():
            wake()

    def fired(self, event: WatchEvent) -> None:
        """Handle an event on kazoo's thread; changes of the connection are handled by Connection."""
        if event.type != "NONE":
            with suppress(RuntimeError):  # the loop is closed, so the event has no use any more
                self._loop.call_soon_threadsafe(self.wake)


class ZooKeeperStore:
    """A MetadataStore over ZooKeeper. Async context manager.

    Entering raises Transient if no server answers within `connect_timeout_s`. After that, calls survive interruptions:
    they wait up to `call_timeout_s` seconds for ZooKeeper, then raise Transient.
    """

    def __init__(
        self,
        servers: str,
        root: str,
        options: MetadataSettings | None = None,
        *,
        call_timeout_s: float = 10.0,
        observer: SessionObserver = lambda _: None,
    ) -> None:
        """Take the servers (`host:port,...`) and the node below which all paths are.

        Servers and root of `options` are ignored. `observer` is called at each change of the session's state (metrics).
        """
        options = options or MetadataSettings()
        self._servers = servers
        self._root = port.checked_path(root).rstrip("/")
        self._connect_timeout_s = options.connect_timeout_s
        self._call_timeout_s = call_timeout_s
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._arming = {children: asyncio.Semaphore(ARMED_AT_ONCE) for children in (False, True)}
        self._watched: dict[str, _Watched] = {}
        self._connection: Connection[ZooKeeperClient] = Connection(
            partial(make_client, servers, options),
            servers=servers,
            session_timeout_s=options.session_timeout_s,
            observer=observer,
            on_connected=self._connected,
        )
        self._reads = Reads(
            self._connection,
            servers=servers,
            timeout_s=call_timeout_s,
            translate=lambda error, read: _translated(error, read.what, write=False),
        )

    async def get(self, path: str) -> Versioned:
        """Return a node's value and version. Raises NotFound."""
        value, stat = await self._reads.ask(Read(self._full(path), children=False, what=f"read {path}"))
        return Versioned(value or b"", stat.version, stat.ctime)

    async def children(self, path: str) -> Sequence[str]:
        """Return the sorted names below a node; a node that does not exist has none."""
        try:
            return sorted(await self._reads.ask(Read(self._full(path), children=True, what=f"list {path}")))
        except NotFound:
            return []

    async def sync(self, path: str) -> None:
        """Bring the server up to date with its leader, so that later reads see all writes up to this call."""
        full = self._full(path)
        await self._read(f"sync {path}", lambda client: client.sync_async(full))

    async def about(self, path: str) -> NodeFacts:
        """Return the time of a node's last change, and whether everybody may change it. Raises NotFound."""
        full = self._full(path)
        permissions, stat = await self._read(f"look at {path}", lambda client: client.get_acls_async(full))
        world = [permission.perms for permission in permissions if permission.id.scheme == "world"]
        return NodeFacts(stat.mtime, writable=any(perms & _CHANGES for perms in world))

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        """Create a node and its missing parents. Raises Conflict if it exists or its parent is ephemeral."""
        port.checked_steps([Create(path, value, ephemeral)])
        full = self._full(path)
        for _ in range(CREATE_TRIES):
            try:
                await self._create(full, value, ephemeral=ephemeral)
            except NotFound:
                await self._ensure(port.parent(full))
            else:
                return
        raise Conflict(f"create {path}: the nodes above it vanish as soon as they are made")

    async def replace(self, path: str, value: bytes, version: int) -> int:
        """Set a node's value if its version is `version`; returns the new version. Raises Conflict, NotFound."""
        step = Replace(path, value, version)
        port.checked_steps([step])
        full = self._full(path)
        stat = await self._write(port.described(step), lambda client: client.set_async(full, value, version))
        return stat.version

    async def delete(self, path: str, version: int | None = None) -> None:
        """Delete a node without children. Raises Conflict (version differs, or it has children), NotFound."""
        step = Delete(path, version)
        port.checked_steps([step])
        full, expected = self._full(path), -1 if version is None else version
        await self._write(port.described(step), lambda client: client.delete_async(full, expected))

    async def transact(self, steps: Sequence[Step]) -> None:
        """Carry out all steps or none. Raises Conflict naming the step that failed."""
        port.checked_steps(steps)
        if not steps:
            return

        def commit(client: ZooKeeperClient) -> Result[Sequence[object]]:
            transaction = client.transaction()
            for step in steps:
                self._add(transaction, step)
            return transaction.commit_async()

        size = port.request_bytes(steps)
        what = f"transaction of {len(steps)} steps and about {size} bytes, the first {port.described(steps[0])}"
        answers = await self._write(what, commit)
        for number, answer in enumerate(answers):
            # The steps before the one that failed are answered as rolled back, those after it as not tried.
            if isinstance(answer, Exception) and not isinstance(answer, zk.RolledBackError | zk.RuntimeInconsistency):
                error = _translated(answer, port.described(steps[number]), write=True)
                if isinstance(error, Conflict | NotFound):
                    raise port.failed_step(number, steps, error.message)
                raise error

    async def watch(self, path: str) -> AsyncGenerator[None, None]:
        """Yield at once, then whenever the node's value or its list of children may have changed."""
        full = self._full(path)
        changed = Event()
        watched = self._watch(full, changed.set)
        try:
            if not self._connection.live:
                self._connection.check_open()
                yield
            while True:
                await self._connection.client()
                changed.clear()
                try:
                    await self._arm(full, watched, children=True)
                except Transient:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(REARM_PAUSE_S):
                            await changed.wait()
                    continue
                yield
                await changed.wait()
        finally:
            watched.wakes.remove(changed.set)

    async def arm(self, path: str, fired: Callable[[], None]) -> None:
        """Call `fired` once the node, not its children, may have changed; see `bookkeeper.ports.Znodes`."""
        full = self._full(path)
        watched = self._watch(full, fired)
        while True:
            await self._connection.client()
            try:
                await self._arm(full, watched, children=False)
            except Transient:
                await asyncio.sleep(REARM_PAUSE_S)  # noqa: TID251 - the pause of `watch`
            else:
                return

    def disarm(self, path: str, fired: Callable[[], None]) -> None:
        """Remove a callback of `arm`; no error if it is unknown."""
        watched = self._watched.get(self._full(path))
        if watched is not None and fired in watched.wakes:
            watched.wakes.remove(fired)

    async def session(self) -> Session:
        """Return the current session; waits for one."""
        return await self._connection.session()

    async def __aenter__(self) -> Self:
        """Connect, and create the root. Raises Transient, Denied, InvalidConfig."""
        await self._connection.open(self._connect_timeout_s)
        try:
            if self._root and await self._read("read the root", lambda client: client.exists_async(self._root)) is None:
                await self._ensure(self._root)
        except BaseException:
            await self._connection.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the session and all threads; open calls and watches raise Closed."""
        await self._connection.close()
        self._reads.close()
        self._wake_all()

    def _full(self, path: str) -> str:
        return self._root + port.checked_path(path) if path != "/" else self._root or "/"

    def _add(self, transaction: Transaction, step: Step) -> None:
        full = self._full(step.path)
        if isinstance(step, Create):
            transaction.create(full, step.value, ephemeral=step.ephemeral)
        elif isinstance(step, Replace):
            transaction.set_data(full, step.value, step.version)
        elif isinstance(step, Delete):
            transaction.delete(full, -1 if step.version is None else step.version)
        else:
            assert isinstance(step, Check)  # noqa: S101 - the type checker sees that nothing else is left
            transaction.check(full, step.version)

    async def _create(self, full: str, value: bytes, *, ephemeral: bool = False) -> None:
        await self._write(f"create {full}", lambda client: client.create_async(full, value, ephemeral=ephemeral))

    async def _ensure(self, full: str) -> None:
        """Create an empty node and its missing parents."""
        try:
            await self._create(full, b"")
        except NotFound:
            await self._ensure(port.parent(full))
            with suppress(Conflict):
                await self._create(full, b"")
        except Conflict:
            return

    def _watch(self, full: str, wake: Callable[[], None]) -> _Watched:
        """Register `wake` for a node's events; `_arm` then requests them from kazoo."""
        watched = self._watched.setdefault(full, _Watched(asyncio.get_running_loop()))
        if wake not in watched.wakes:
            watched.wakes.append(wake)
        return watched

    async def _arm(self, full: str, watched: _Watched, *, children: bool) -> None:
        """Request the next change of the node, and of its children, from kazoo."""
        async with self._arming[children]:
            await self._read(f"watch {full}", lambda client: client.exists_async(full, watch=watched.fired))
            if not children:
                return
            with suppress(NotFound):
                await self._read(f"watch {full}", lambda client: client.get_children_async(full, watch=watched.fired))

    def _connected(self) -> None:
        self._wake_all()
        self._reads.send()

    def _wake_all(self) -> None:
        """Wake every watch. Kazoo has dropped its callbacks, so nodes without our callbacks are forgotten."""
        self._watched = {path: watched for path, watched in self._watched.items() if watched.wakes}
        for watched in self._watched.values():
            watched.wake()

    async def _read(self, what: str, start: Callable[[ZooKeeperClient], Result[T]]) -> T:
        return await self._call(what, start, write=False)

    async def _write(self, what: str, start: Callable[[ZooKeeperClient], Result[T]]) -> T:
        return await self._call(what, start, write=True)

    async def _call(self, what: str, start: Callable[[ZooKeeperClient], Result[T]], *, write: bool) -> T:
        """Send a request and wait for its answer. After a cancellation it may still be carried out."""
        handed_over = False
        try:
            async with asyncio.timeout(self._call_timeout_s), self._slots:
                client = await self._connection.client()
                handed_over = True
                return await _linked(start(client), what, write=write)
        except TimeoutError:
            if handed_over:
                raise _unanswered(what, f"no answer within {self._call_timeout_s:g} s", write=write) from None
            raise Transient(
                f"{what}: no connection to ZooKeeper within {self._call_timeout_s:g} s",
                hint=f"check that ZooKeeper runs at {self._servers}",
            ) from None


def _linked(result: Result[T], what: str, *, write: bool) -> asyncio.Future[T]:
    """Return a future of the loop for a result that kazoo's threads deliver."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle() -> None:
        if future.done():
            return
        if result.successful():
            future.set_result(result.value)
        else:
            future.set_exception(_translated(result.exception, what, write=write))

    def answered(_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed, so the answer has no use any more
            loop.call_soon_threadsafe(settle)

    result.rawlink(answered)
    return future


def _translated(error: Exception | None, what: str, *, write: bool) -> OffloaderError:
    """Return our error for one of kazoo's. An error without a certain meaning leaves a write's outcome unknown."""
    for kind in type(error).__mro__:
        if kind in _CERTAIN:
            ours, why = _CERTAIN[kind]
            return ours(f"{what}: {why}", hint=_HINTS.get(ours, ""))
    return _unanswered(what, f"{type(error).__name__} {error}".strip(), write=write)


def _unanswered(what: str, why: str, *, write: bool) -> Transient:
    if write:
        return OutcomeUnknown(
            f"{what}: {why}; it may or may not have been carried out", hint="read back before trying again"
        )
    return Transient(f"{what}: {why}", hint="try again")
