"""A metadata store in memory: one tree, any number of sessions, the rules of ZooKeeper; for tests and dry runs.

    tree = MemoryTree()
    one, two = tree.connect(), tree.connect()
    one.expire()    # its ephemeral nodes are deleted, its session is lost, a new one follows

Every call yields to the loop once before it reads the tree, so that callers interleave as they do with a server.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Self

from offloaderd.core.errors import Closed, Conflict, NotFound, OffloaderError
from offloaderd.metadata import port
from offloaderd.metadata.port import Check, Create, Delete, Replace, Session, Step, Versioned


@dataclass(frozen=True, slots=True)
class _Node:
    """A node's content; `owner` is the session of an ephemeral one, empty for others."""

    value: bytes
    version: int
    owner: str = ""


class _Watcher:
    """A callback for changes of a node and of its list of children."""

    def __init__(self, path: str, told: Callable[[], None]) -> None:
        self.path = path
        self.told = told


class MemoryTree:
    """The nodes, the sessions and the watches."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {"/": _Node(b"", 0)}
        self._session_count = 0
        self._watchers: set[_Watcher] = set()

    def backup(self) -> "MemoryTree":
        """Return a tree as a backup of a metadata store would restore it: without the sessions' nodes."""
        copy = MemoryTree()
        copy._nodes = {path: node for path, node in self._nodes.items() if not node.owner}
        copy._session_count = self._session_count
        return copy

    def connect(self) -> "MemoryMetadata":
        """Return a store with a new session."""
        return MemoryMetadata(self)

    def new_session(self) -> Session:
        """Begin a session."""
        self._session_count += 1
        return Session(f"memory-{self._session_count}")

    def end_session(self, session: Session) -> None:
        """End a session: its ephemeral nodes are deleted and `lost` is set."""
        if not session.lost.is_set():
            session.lost.set()
            owned = [path for path, node in self._nodes.items() if node.owner == session.session_id]
            self._commit({**self._nodes}, owned)

    def node(self, path: str) -> Versioned:
        """Return a node. Raises NotFound."""
        found = _found(self._nodes, path)
        return Versioned(found.value, found.version)

    def children(self, path: str) -> list[str]:
        """Return the names below a node, sorted."""
        return sorted(_below(self._nodes, path))

    def missing_parents(self, path: str) -> list[str]:
        """Return the nodes above `path` that do not exist, highest first."""
        missing = []
        while (path := port.parent(path)) not in self._nodes:
            missing.append(path)
        return missing[::-1]

    def apply(self, steps: Sequence[Step], session_id: str) -> None:
        """Carry out all steps or none. Raises the first failing step's Conflict or NotFound, `.step` its number."""
        nodes = dict(self._nodes)
        for number, step in enumerate(steps):
            try:
                _carry_out(nodes, step, session_id)
            except OffloaderError as error:
                raise _StepFailed(number, step, error) from error
        self._commit(nodes, [])

    def watch(self, path: str, told: Callable[[], None]) -> _Watcher:
        """Begin to watch a node and its list of children."""
        watcher = _Watcher(path, told)
        self._watchers.add(watcher)
        return watcher

    def unwatch(self, watcher: _Watcher) -> None:
        """End a watch."""
        self._watchers.discard(watcher)

    @property
    def watcher_count(self) -> int:
        """Number of open watches."""
        return len(self._watchers)

    def _commit(self, nodes: dict[str, _Node], gone: Sequence[str]) -> None:
        """Replace the nodes of the tree, and notify the watchers of changed ones."""
        for path in gone:
            del nodes[path]
        before, self._nodes = self._nodes, nodes
        changed = {path for path in before.keys() | nodes.keys() if before.get(path) is not nodes.get(path)}
        listed = {port.parent(path) for path in changed if (path in before) is not (path in nodes)}
        for watcher in self._watchers.copy():
            if watcher.path in changed or watcher.path in listed:
                watcher.told()


class _StepFailed(Exception):
    """The failed step of a transaction, with its error."""

    def __init__(self, number: int, step: Step, cause: OffloaderError) -> None:
        super().__init__(str(cause))
        self.number = number
        self.step = step
        self.cause = cause


class MemoryMetadata:
    """A MetadataStore over a MemoryTree, with a session of its own. Closing it ends the session."""

    def __init__(self, tree: MemoryTree) -> None:
        self._tree = tree
        self._session = tree.new_session()
        self._watchers: set[_Watcher] = set()
        self._armed: dict[tuple[str, Callable[[], None]], _Watcher] = {}
        self._closed = False

    async def get(self, path: str) -> Versioned:
        """Return a node's value and version. Raises NotFound."""
        await self._turn()
        return self._tree.node(port.checked_path(path))

    async def children(self, path: str) -> Sequence[str]:
        """Return the sorted names below a node; a node that does not exist has none."""
        await self._turn()
        return self._tree.children(port.checked_path(path))

    async def sync(self, path: str) -> None:
        """Do nothing: all sessions see one tree."""
        port.checked_path(path)
        await self._turn()

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        """Create a node, making its parents. Raises Conflict when it exists or its parent is ephemeral."""
        step = Create(path, value, ephemeral)
        port.checked_steps([step])
        await self._turn()
        parents = [Create(missing, b"") for missing in self._tree.missing_parents(path)]
        self._apply_one([*parents, step])

    async def replace(self, path: str, value: bytes, version: int) -> int:
        """Set a node's value if its version is `version`; returns the new version. Raises Conflict, NotFound."""
        step = Replace(path, value, version)
        port.checked_steps([step])
        await self._turn()
        self._apply_one([step])
        return version + 1

    async def delete(self, path: str, version: int | None = None) -> None:
        """Delete a node without children. Raises Conflict (version differs, or it has children), NotFound."""
        step = Delete(path, version)
        port.checked_steps([step])
        await self._turn()
        self._apply_one([step])

    async def transact(self, steps: Sequence[Step]) -> None:
        """Carry out all steps or none. Raises Conflict naming the step that failed."""
        port.checked_steps(steps)
        await self._turn()
        try:
            self._tree.apply(steps, self._session.session_id)
        except _StepFailed as failed:
            raise port.failed_step(failed.number, steps, str(failed.cause)) from failed.cause

    async def watch(self, path: str) -> AsyncGenerator[None, None]:
        """Yield at once, then whenever the node's value or its list of children may have changed."""
        port.checked_path(path)
        self._check_open()
        changed = asyncio.Event()
        watcher = self._tell(path, changed.set)
        changed.set()
        try:
            while True:
                await changed.wait()
                self._check_open()
                changed.clear()
                yield
        finally:
            self._tell_no_more(watcher)

    async def arm(self, path: str, fired: Callable[[], None]) -> None:
        """Call `fired` whenever the node may have changed after this returned; see `ports.Znodes`."""
        port.checked_path(path)
        await self._turn()
        if (path, fired) not in self._armed:
            self._armed[path, fired] = self._tell(path, fired)

    def disarm(self, path: str, fired: Callable[[], None]) -> None:
        """Remove a callback of `arm`. An unknown one is no error."""
        watcher = self._armed.pop((path, fired), None)
        if watcher is not None:
            self._tell_no_more(watcher)

    def _tell(self, path: str, told: Callable[[], None]) -> _Watcher:
        watcher = self._tree.watch(path, told)
        self._watchers.add(watcher)
        return watcher

    def _tell_no_more(self, watcher: _Watcher) -> None:
        self._tree.unwatch(watcher)
        self._watchers.discard(watcher)

    async def session(self) -> Session:
        """Return the current session."""
        await self._turn()
        return self._session

    def expire(self) -> None:
        """End the session, as a server does after too long a silence; a new one follows at once."""
        self._tree.end_session(self._session)
        self._session = self._tree.new_session()
        for watcher in self._watchers.copy():
            watcher.told()

    def close(self) -> None:
        """End the session; every later call, and every open watch, raises Closed."""
        self._closed = True
        self._tree.end_session(self._session)
        for watcher in self._watchers.copy():
            watcher.told()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _apply_one(self, steps: Sequence[Step]) -> None:
        try:
            self._tree.apply(steps, self._session.session_id)
        except _StepFailed as failed:
            raise failed.cause from None

    async def _turn(self) -> None:
        await asyncio.sleep(0)  # noqa: TID251 - yields to the loop, waits for nothing
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the metadata store is closed")


def _carry_out(nodes: dict[str, _Node], step: Step, session_id: str) -> None:
    """Do one step on a copy of the tree. Raises Conflict, NotFound."""
    if isinstance(step, Create):
        if step.path in nodes:
            raise Conflict(f"{step.path} exists")
        above = _found(nodes, port.parent(step.path))
        if above.owner:
            raise Conflict(f"{port.parent(step.path)} is ephemeral and cannot have children")
        nodes[step.path] = _Node(step.value, 0, session_id if step.ephemeral else "")
        return
    node = _found(nodes, step.path)
    if step.version is not None and step.version != node.version:
        raise Conflict(f"{step.path} is at version {node.version}, not {step.version}")
    if isinstance(step, Replace):
        nodes[step.path] = _Node(step.value, node.version + 1, node.owner)
    elif isinstance(step, Delete):
        if _below(nodes, step.path):
            raise Conflict(f"{step.path} has children")
        del nodes[step.path]
    else:
        assert isinstance(step, Check)  # noqa: S101 - the type checker sees that no other type is left


def _found(nodes: dict[str, _Node], path: str) -> _Node:
    found = nodes.get(path)
    if found is None:
        raise NotFound(f"no node {path}")
    return found


def _below(nodes: dict[str, _Node], path: str) -> list[str]:
    start = path.rstrip("/") + "/"
    return [
        name[len(start) :] for name in nodes if name.startswith(start) and name != "/" and "/" not in name[len(start) :]
    ]
