"""Simulated ZooKeeper: one tree with a history, sessions that the servers end, connections that break.

What it keeps of the real one: a transaction is atomic; requests of one connection are carried out in their order; a
connection that breaks leaves its last requests carried out or not, and whoever asked without an answer; the session
outlives connections, until the servers have not heard of it for its time-out; a client that could not reach anybody
for as long gives its session up. Reads are those of a server that may lag behind, but never behind what the client
has seen before. A watch is set at what that server shows then: what it shows later of the node is told, however long
ago it came about.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from offloaderd.core.errors import Closed, Conflict, NotFound, OffloaderError, OutcomeUnknown, Transient
from offloaderd.metadata import port
from offloaderd.metadata.port import Create, Delete, Replace, Session, SessionState, Versioned
from offloaderd.testing.memory import metadata as memory
from offloaderd.testing.memory.metadata import MemoryTree
from tests.real import labels

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from offloaderd.metadata.port import SessionObserver, Step
    from tests.simulation.loop import Process
    from tests.simulation.world import World

T = TypeVar("T")
Nodes = dict[str, Any]

SESSION_TIMEOUT_S = 4.0
CALL_TIMEOUT_S = 3.0
LATENCY_S = 0.008
LAG_S = 0.4
REARM_PAUSE_S = 0.2


class _State(NamedTuple):
    """The nodes from a time on, and the paths whose watches that change is told."""

    since: float
    nodes: Nodes
    told: set[str]


class Tree(MemoryTree):
    """The nodes and their past: what servers that lag behind still show."""

    def __init__(self, world: World, *, watched: bool = True) -> None:
        super().__init__()
        self._world = world
        self._watched = watched
        """Whether the model looks at it: it is that of the deployment whose topics these are."""
        self.history = [_State(0.0, self._nodes, set())]
        self.clients: list[ZooKeeper] = []
        self.writer = ""
        self._sessions: list[Session] = []

    def new_session(self) -> Session:
        """Begin a session."""
        session = super().new_session()
        self._sessions.append(session)
        return session

    def restore(self, number: int, below: str) -> None:
        """Bring back the nodes at and below a path as an earlier state had them, without what sessions own.

        No session outlives it: what was on its way from earlier clients is refused.
        """
        for session in self._sessions:
            self.end_session(session)
        self._sessions.clear()
        kept = {path: node for path, node in self._nodes.items() if not _is_below(path, below)}
        old = self.history[number].nodes.items()
        self._replace(kept | {path: node for path, node in old if _is_below(path, below) and not node.owner})

    def remove(self, below: str) -> None:
        """Take away the nodes at and below a path."""
        self._replace({path: node for path, node in self._nodes.items() if not _is_below(path, below)})

    def _replace(self, nodes: Nodes) -> None:
        """Put other nodes in place of all, which the model does not look at."""
        changed = {path for path in self._nodes.keys() | nodes.keys() if self._nodes.get(path) is not nodes.get(path)}
        self._nodes = nodes
        told = changed | {port.parent(path) for path in changed}
        self.history.append(_State(self._world.loop.time(), nodes, told))
        for client in self.clients:
            client.changed()

    @property
    def nodes(self) -> Nodes:
        """The nodes as they are."""
        return self._nodes

    @property
    def number(self) -> int:
        """Number of the last change."""
        return len(self.history) - 1

    def seen(self, lag_s: float, at_least: int) -> int:
        """Return the number of the newest state that a server shows that lags behind so much."""
        limit = self._world.loop.time() - lag_s
        number = self.number
        while number > at_least and self.history[number].since > limit:
            number -= 1
        return number

    def changed_after(self, number: int, watch: _Watch) -> bool:
        """Say whether what a watch is of is another than in that state."""
        return any(self.reports(at, watch) for at in range(number + 1, len(self.history)))

    def reports(self, number: int, watch: _Watch) -> bool:
        """Say whether a watch is told of one change."""
        path = watch.path
        if watch.children:
            return path in self.history[number].told
        return self.history[number].nodes.get(path) is not self.history[number - 1].nodes.get(path)

    def _commit(self, nodes: Nodes, gone: Sequence[str]) -> None:
        for path in gone:
            del nodes[path]
        before, self._nodes = self._nodes, nodes
        changed = sorted(path for path in before.keys() | nodes.keys() if before.get(path) is not nodes.get(path))
        if not changed:
            return
        listed = {port.parent(path) for path in changed if (path in before) is not (path in nodes)}
        self.history.append(_State(self._world.loop.time(), nodes, {*changed, *listed}))
        for client in self.clients:
            client.changed()
        if self._watched:
            self._world.oracle.changed(changed, before, nodes, self.writer)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/") or not folder


class _Watch:
    """One watch of a client, of a node and its list of children or of the node alone.

    `since`: number of the state at which it was set, None if it is not. Once told of a change it has to be set again.
    """

    def __init__(self, path: str, wake: Callable[[], None], *, children: bool) -> None:
        self.path = path
        self.wake = wake
        self.children = children
        self.since: int | None = None


class ZooKeeper:
    """One process's MetadataStore."""

    def __init__(self, world: World, process: Process, tree: Tree | None = None) -> None:
        self._world = world
        self._loop = world.loop
        self._tree = tree or world.tree
        self._process = process
        self._rng = world.chance.stream(f"zk of {process.name}")
        self._session: Session | None = None
        self._doubted = False
        self._connected = asyncio.Event()
        self._connection = 0
        self._seen = 0
        self.session_timeout_s = SESSION_TIMEOUT_S
        self.call_timeout_s = CALL_TIMEOUT_S
        self.lag_s = 0.0
        """How far the server lags behind that it is connected to."""
        self.observer: SessionObserver = lambda _: None
        self._last_there = self._last_back = 0.0
        self._waiting: dict[int, _Request] = {}
        self._requests = 0
        self._watches: dict[_Watch, None] = {}
        self._armed: dict[tuple[str, Callable[[], None]], _Watch] = {}
        self._closed = False
        self._doubting: asyncio.TimerHandle | None = None
        self._unheard_since: float | None = None
        self._swallowed = False
        self._server_session: Session | None = None
        self._tree.clients.append(self)
        self._reconnect_later()

    async def get(self, path: str) -> Versioned:
        """See MetadataStore."""
        port.checked_path(path)
        return await self._read(f"get {path}", lambda nodes: _versioned(nodes, path))

    async def children(self, path: str) -> Sequence[str]:
        """See MetadataStore."""
        port.checked_path(path)
        return await self._read(f"children {path}", lambda nodes: sorted(memory._below(nodes, path)))

    async def sync(self, path: str) -> None:
        """Have the server catch up."""
        port.checked_path(path)

        def act() -> None:
            self._seen = self._tree.number

        await self._call(f"sync {path}", act, write=False)

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        """See MetadataStore."""
        step = Create(path, value, ephemeral)
        port.checked_steps([step])

        def act() -> None:
            parents = [Create(missing, b"") for missing in self._tree.missing_parents(path)]
            self._apply([*parents, step], alone=True)

        await self._call(f"create {path}", act, write=True, label=partial(labels.of_change, "create", path))

    async def replace(self, path: str, value: bytes, version: int) -> int:
        """See MetadataStore."""
        step = Replace(path, value, version)
        port.checked_steps([step])
        label = partial(labels.of_change, "replace", path)
        await self._call(f"replace {path} {version}", lambda: self._apply([step], alone=True), write=True, label=label)
        return version + 1

    async def delete(self, path: str, version: int | None = None) -> None:
        """See MetadataStore."""
        step = Delete(path, version)
        port.checked_steps([step])
        label = partial(labels.of_change, "delete", path)
        await self._call(f"delete {path}", lambda: self._apply([step], alone=True), write=True, label=label)

    async def transact(self, steps: Sequence[Step]) -> None:
        """See MetadataStore."""
        port.checked_steps(steps)
        what = ", ".join(f"{type(step).__name__.lower()} {step.path.rpartition('/')[2]}" for step in steps)
        label = partial(labels.of_steps, steps)
        await self._call(f"transact {what}", lambda: self._apply(steps), write=True, label=label)

    async def watch(self, path: str) -> AsyncGenerator[None, None]:
        """See MetadataStore."""
        port.checked_path(path)
        event = asyncio.Event()
        watch = _Watch(path, event.set, children=True)
        self._watches[watch] = None
        try:
            while True:
                self._check_open()
                self._set([watch])
                yield
                await event.wait()
                event.clear()
        finally:
            self._watches.pop(watch, None)

    async def arm(self, path: str, fired: Callable[[], None]) -> None:
        """See Znodes."""
        port.checked_path(path)
        watch = self._armed.setdefault((path, fired), _Watch(path, fired, children=False))
        self._watches[watch] = None
        while True:
            try:
                await self._call(f"arm {path}", lambda: self._set([watch]), write=False)
            except Transient:
                await asyncio.sleep(REARM_PAUSE_S)  # noqa: TID251 - the loop's own time
            else:
                return

    def disarm(self, path: str, fired: Callable[[], None]) -> None:
        """See Znodes."""
        watch = self._armed.pop((path, fired), None)
        if watch is not None:
            watch.since = None
            del self._watches[watch]

    async def session(self) -> Session:
        """See MetadataStore."""
        self._check_open()
        while self._session is None:
            await self._connected.wait()
            self._check_open()
        return self._session

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the metadata store is closed")

    # What happens to the connection; all of it is the world's doing.

    def disconnect(self, reconnect_s: float | None = None) -> None:
        """Break the connection: requests on their way are carried out up to some point, none is answered."""
        self._connection += 1
        self._swallowed = False
        self._connected.clear()
        self._server_waits()
        cut = self._loop.time() + self._rng.choice([0.0, self._rng.random() * LATENCY_S])
        waiting, self._waiting = self._waiting, {}
        for request in waiting.values():
            if request.arrives <= cut and not request.arrived:
                self._loop.in_world(max(0.0, request.arrives - self._loop.time()), request.arrive, True)
            self._loop.in_world(self._rng.random() * LATENCY_S, request.tell, request.silence())
        if self._doubting is None and self._session is not None:
            self.observer(SessionState.SUSPENDED)
            self._doubting = self._loop.call_later(self.session_timeout_s, self._doubt, context=self._process.context)
        self._reconnect_later(reconnect_s)

    def cut(self) -> None:
        """Cut the line without a word: nothing arrives any more, and the process notices only after a while."""
        if self._connected.is_set() and not self._swallowed:
            self._swallowed = True
            self._server_waits()
            self._loop.in_world(self._rng.random() * self.session_timeout_s * 2 / 3, self._broken, self._connection)

    def _server_waits(self) -> None:
        if self._unheard_since is None:
            self._unheard_since = self._loop.time()
            self._loop.in_world(self.session_timeout_s, self._server_gives_up, self._server_session, -1)

    def process_stopped(self) -> None:
        """The process no longer answers; the servers wait for as long as a session lasts."""
        self._server_waits()

    def process_goes_on(self) -> None:
        """The process answers again; whether there is still a session, it will hear."""
        lost = self._server_session is None or self._server_session.lost.is_set()
        if self._connected.is_set() and not self._swallowed:
            self._unheard_since = None
        if lost:
            self.disconnect(self._rng.random() * 0.5)

    def expire(self) -> None:
        """Have the servers end the session."""
        if self._server_session is not None:
            self._end(self._server_session)
            self._loop.in_world(self._rng.random() * 0.3, self._broken, self._connection, self._rng.random() * 0.3)

    def close(self) -> None:
        """End the session as the process wants it: at once where the servers hear of it, else they end it later."""
        self._closed = True
        reached = self._connected.is_set() and not self._swallowed
        waiting = self._waiting
        self.gone()
        for request in waiting.values():
            request.tell(request.silence())
        if self._session is not None:
            self._session.lost.set()
            self._session = None
        if reached and self._server_session is not None:
            self._end(self._server_session)
        self._connected.set()
        self._wake(self._watches)

    def gone(self) -> None:
        """The process died: nobody closes the session, the servers notice after a while."""
        if self in self._tree.clients:
            self._tree.clients.remove(self)
        waiting, self._waiting = self._waiting, {}
        for request in waiting.values():
            if not request.arrived and self._rng.random() < 0.5:
                self._loop.in_world(max(0.0, request.arrives - self._loop.time()), request.arrive, True)
        self._connection += 1
        self._loop.in_world(self.session_timeout_s, self._server_gives_up, self._server_session, self._connection)

    def changed(self) -> None:
        """Tell the watches of the last change, when the server that this client is connected to shows it."""
        number = self._tree.number
        told = [watch for watch in self._watches if watch.since is not None and self._tree.reports(number, watch)]
        if told:
            delay = self.lag_s + LATENCY_S * (0.2 + self._rng.random())
            self._loop.in_world(delay, self._fire, told, number, self._connection)

    def _set(self, watches: Iterable[_Watch]) -> None:
        """Set watches at what the server shows now, and tell them of all else when it shows that."""
        if not self._connected.is_set() or self._swallowed:
            return  # they are told when there is a connection again
        self._seen = self._tree.seen(self.lag_s, self._seen)
        for watch in watches:
            watch.since = self._seen
        told = [watch for watch in watches if self._tree.changed_after(self._seen, watch)]
        if told:
            delay = self.lag_s + LATENCY_S
            self._loop.in_world(delay, self._fire, told, self._tree.number, self._connection)

    def _fire(self, watches: list[_Watch], number: int, connection: int) -> None:
        if self.last_answer(connection) and self._connected.is_set():
            self._seen = max(self._seen, number)
            self._wake([watch for watch in watches if watch.since is not None and watch.since < number])

    def _wake(self, watches: Iterable[_Watch]) -> None:
        """Tell the process of changes that its watches are of; they have to be set again."""
        for watch in watches:
            watch.since = None
            self._loop.call_soon(watch.wake, context=self._process.context)

    def _reconnect_later(self, seconds: float | None = None) -> None:
        pause = seconds if seconds is not None else 0.02 + self._rng.random() * 1.5
        self._loop.in_world(pause, self._reconnect, self._connection)

    def _reconnect(self, connection: int) -> None:
        """Reach a server again, with the session if it still lives."""
        if connection != self._connection or self._closed or not self._process.alive:
            return
        if (
            (self._process.name[0], "zk") in self._world.cuts
            or self._process.stopped
            or self._world.conditions.get("zk") == "out"
        ):
            self._loop.in_world(0.2 + self._rng.random() * 0.3, self._reconnect, connection)
            return
        fault = self._world.faults
        stale = fault.on and any(kind == "stale" for kind, _ in fault.rates["zk"])
        self.lag_s = self._rng.choice([0.0, 0.0, LAG_S * self._rng.random()]) if stale else 0.0
        self._unheard_since = None
        self._last_there = self._last_back = self._loop.time()
        lost = self._server_session is None or self._server_session.lost.is_set()
        if self._doubted and self._server_session is not None and not lost:
            self._end(self._server_session)
            lost = True
        if lost:
            if self._session is not None:
                self._session.lost.set()
                self._session = None
                self.observer(SessionState.LOST)
            self._doubted = False
            self._server_session = self._tree.new_session()
            self._session = Session(self._server_session.session_id)
            self._world.trace(self._process.name, f"session {self._session.session_id}")
        if self._doubting is not None:
            self._doubting.cancel()
            self._doubting = None
        self._connected.set()
        self.observer(SessionState.CONNECTED)
        self._wake(self._watches)

    def _server_gives_up(self, session: Session | None, connection: int) -> None:
        """End a session of which nothing was heard for its time-out."""
        if session is None or session.lost.is_set() or session is not self._server_session:
            return
        since = self._unheard_since
        if connection == self._connection or (
            since is not None and self._loop.time() - since > self.session_timeout_s - 0.001
        ):
            self._end(session)

    def _doubt(self) -> None:
        """Give up a session that the servers may have ended (runs in the process)."""
        self._doubting = None
        if self._session is not None:
            self._doubted = True
            self._session.lost.set()
            self._session = None
            self.observer(SessionState.LOST)

    def _end(self, session: Session) -> None:
        self._tree.writer = ""
        self._world.trace("zookeeper", f"ends {session.session_id}")
        self._tree.end_session(session)

    # Requests.

    async def _read(self, what: str, look: Callable[[Nodes], T]) -> T:
        def act() -> T:
            number = self._tree.seen(self.lag_s, self._seen)
            if number != self._tree.number:
                self._world.faults.count("zk stale read")
            self._seen = number
            return look(self._tree.history[number].nodes)

        return await self._call(what, act, write=False)

    def _apply(self, steps: Sequence[Step], *, alone: bool = False) -> None:
        session = self._server_session
        if session is None or session.lost.is_set():
            raise OutcomeUnknown("the session has expired")
        self._tree.writer = self._process.name
        try:
            self._tree.apply(steps, session.session_id)
        except memory._StepFailed as failed:
            if alone:
                raise failed.cause from None
            raise port.failed_step(failed.number, steps, str(failed.cause)) from None
        self._seen = self._tree.number

    async def _call(self, what: str, act: Callable[[], T], *, write: bool, label: Callable[[], str] | None = None) -> T:
        """Ask the server; `label` is what kill points call the request, None: none is there."""
        trap = self._world.trap
        if trap is None or label is None:
            return await self._ask(what, act, write=write)
        return await trap.around(self._process, label(), act, partial(self._ask, what, write=write))

    async def _ask(self, what: str, act: Callable[[], T], *, write: bool) -> T:
        if not self._process.alive:
            raise asyncio.CancelledError
        if not self._connected.is_set():
            try:
                async with asyncio.timeout(self.call_timeout_s):
                    while not self._connected.is_set():
                        await self._connected.wait()
            except TimeoutError:
                raise Transient(f"{what}: no connection") from None
        self._check_open()
        now, rng = self._loop.time(), self._rng
        fault = self._world.faults.draw("zk", rng, times=2.0 if write else 1.0)
        if fault and fault != "stale":
            self._world.faults.count(f"zk {fault}")
        if fault == "error":
            await asyncio.sleep(LATENCY_S)  # noqa: TID251 - the loop's own time
            raise Transient(f"{what}: the server has lost its quorum")
        slow = rng.random() * 1.0 if fault == "slow" else 0.0
        there = max(self._last_there, now + slow + LATENCY_S * (0.1 + rng.random() ** 3))
        back = max(self._last_back, there + LATENCY_S * (0.1 + rng.random() ** 3))
        self._last_there, self._last_back = there, back
        answer: asyncio.Future[T] = self._loop.create_future()
        self._requests += 1
        number = self._requests
        request = _Request(self, what, act, answer, there, back, self._connection, write=write)
        self._waiting[number] = request
        self._loop.in_world(there - now, request.arrive, False)
        if fault == "disconnect":
            self._loop.in_world(rng.random() * (back - now), self._broken, self._connection)
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    def _broken(self, connection: int, reconnect_s: float | None = None) -> None:
        if connection == self._connection and self._process.alive:
            self.disconnect(reconnect_s)

    def last_answer(self, connection: int) -> bool:
        """Say whether an answer on that connection reaches the process."""
        return connection == self._connection and not self._swallowed

    def trace(self, what: str) -> None:
        """Note something in the run's trace."""
        self._world.trace(self._process.name, what)

    def later(self, when: float, callback: Callable[..., object], *args: object) -> None:
        """Have the world do something at a time."""
        self._loop.in_world(max(0.0, when - self._loop.time()), callback, *args)


class _Request:
    """One request on a connection."""

    def __init__(
        self,
        client: ZooKeeper,
        what: str,
        act: Callable[[], Any],
        answer: asyncio.Future[Any],
        arrives: float,
        answered: float,
        connection: int,
        *,
        write: bool,
    ) -> None:
        self.arrives = arrives
        self.arrived = False
        self._client = client
        self._what = what
        self._act = act
        self._answer = answer
        self._answered = answered
        self._connection = connection
        self._write = write

    def silence(self) -> OffloaderError:
        """Return what the client makes of no answer."""
        return (OutcomeUnknown if self._write else Transient)(f"{self._what}: connection lost")

    def arrive(self, late: bool) -> None:
        """Carry it out, unless the connection broke before."""
        if self.arrived or not (late or self._client.last_answer(self._connection)):
            return
        self.arrived = True
        try:
            result = self._act()
        except (Conflict, NotFound) as error:
            self._client.trace(f"{self._what} !{type(error).__name__}")
            self._client.later(self._answered, self.tell, error)
            return
        except OffloaderError as error:
            self._client.later(self._answered, self.tell, error)
            return
        self._client.trace(f"{'unheard ' if late else ''}{self._what}")
        if not late:
            self._client.later(self._answered, self._deliver, result)

    def tell(self, error: OffloaderError) -> None:
        """Answer with an error."""
        if not self._answer.done():
            self._answer.set_exception(error)

    def _deliver(self, result: object) -> None:
        if self._client.last_answer(self._connection) and not self._answer.done():
            self._answer.set_result(result)


def _versioned(nodes: Nodes, path: str) -> Versioned:
    node = memory._found(nodes, path)
    return Versioned(node.value, node.version)
