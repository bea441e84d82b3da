"""Registration of a daemon: the ephemeral node that shows others its address, and whether it takes topics.

A node under our id is one of three. It is ours of this session, from an earlier try whose answer was lost. Or it is
ours of a lost session, and deleted: no other daemon has our id, address and start time. Or it is another run's, which
ends with that run's session and is waited for. If that run's process has certainly ended, the node is deleted and its
topics are ours to claim. Were that wrong, the other run would be fenced, and commit nothing.

A process is known by the machine's boot, its namespace of process ids, its id and its start time, all from /proc
(Linux). Where any of that cannot be read, or belongs to another machine or container, nothing is claimed.
"""

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path

import structlog

from offloaderd import __version__
from offloaderd.core.aio import Group, Signal, race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, NotFound, OutcomeUnknown, Transient
from offloaderd.core.retry import Backoff
from offloaderd.fleet.engine import Engine
from offloaderd.metadata import paths
from offloaderd.metadata.port import MetadataStore, Replace
from offloaderd.metadata.records import ownership
from offloaderd.metadata.records.ownership import DaemonNode

log = structlog.get_logger(__name__)

LOOK_AGAIN_S = 0.5
PATIENCE_SESSIONS = 1.5
"""How long to wait for a former run's node, in session timeouts; a node that remains is another daemon's."""


@dataclass(eq=False)
class Registration:
    """Keeps a daemon's registration in place and up to date; `changed` is called before each write.

    `ended` says whether another run has certainly ended; its node is deleted.
    """

    store: MetadataStore
    node: DaemonNode
    _: KW_ONLY
    clock: Clock
    patience_s: float
    changed: Callable[[DaemonNode], None] = lambda _: None
    ended: Callable[[DaemonNode], bool] = lambda _: False
    _changes: Signal = field(default_factory=Signal, init=False)
    _announced: Signal = field(default_factory=Signal, init=False)
    _unreached_s: float | None = field(default=None, init=False)
    _written: DaemonNode | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._path = paths.daemon(self.node.daemon_id)

    async def open(self) -> DaemonNode:
        """Create this daemon's node and return it with the session that holds it.

        Raises Conflict when another run of this daemon still has the id after `patience_s`.
        """
        deadline, backoff, stored = self.clock.monotonic() + self.patience_s, Backoff(self.clock), None
        while stored is None:
            session = await self.store.session()
            mine = replace(self.node, session_id=session.session_id)
            try:
                await self.store.create(self._path, ownership.encode_daemon(mine), ephemeral=True)
            except (OutcomeUnknown, Transient) as error:
                await backoff.wait(error)
            except Conflict:
                stored = await self._ours(mine, deadline)
            else:
                stored = mine
        self._written = replace(stored, session_id="")
        self._announced.notify()
        return stored

    async def _ours(self, mine: DaemonNode, deadline: float) -> DaemonNode | None:
        """Return the node if this session holds it. A node of an ended session or run is deleted."""
        store, path = self.store, self._path
        try:
            found = await store.get(path)
            other = ownership.decode_daemon(found.value, path=path)
            if replace(mine, session_id=other.session_id, draining=other.draining, impaired=other.impaired) == other:
                if other.session_id == mine.session_id:
                    return other
                await store.delete(path, found.version)
                return None
            if self.ended(other):
                run = {"process": other.process, "session_id": other.session_id}
                log.info("daemon.succeeded", daemon_id=mine.daemon_id, **run)
                await store.delete(path, found.version)
                return None
        except (Conflict, NotFound, Transient, OutcomeUnknown) as error:
            log.debug("daemon.changing", path=path, error=str(error))
            return None
        if self.clock.monotonic() >= deadline:
            raise Conflict(
                f"a daemon with the id {mine.daemon_id!r} is already running at {other.address}",
                hint="stop it, or give this one another id (daemon.id)",
            )
        log.info("daemon.waiting", daemon_id=mine.daemon_id, address=other.address)
        await self.clock.sleep(LOOK_AGAIN_S)
        return None

    def announce(self, *, draining: bool | None = None, impaired: str | None = None) -> None:
        """Change the registration; `run` writes it."""
        node = self.node
        self.node = replace(
            node,
            draining=node.draining if draining is None else draining,
            impaired=node.impaired if impaired is None else impaired,
        )
        if self.node != node:
            self.changed(self.node)
            self._changes.notify()

    def reached_at(self, address: str) -> None:
        """Set the address before the registration: it is known only once the server listens."""
        self.node = replace(self.node, address=address)

    def probed(self, *, reached: bool, patience_s: float) -> None:
        """Record whether the bucket answered; without an answer for `patience_s` seconds this daemon is impaired."""
        now = self.clock.monotonic()
        if reached:
            self._unreached_s = None
            self.announce(impaired="")
        elif self._unreached_s is None:
            self._unreached_s = now
        elif now - self._unreached_s >= patience_s:
            self.announce(impaired="it cannot reach the bucket")

    async def announced(self) -> None:
        """Return once the last change is stored, so that other daemons are notified."""
        while self._written != self.node:
            await self._announced.wait()

    async def run(self) -> None:
        """Keep the registration until cancelled; it is created again after a lost session or a deletion."""
        async with Group() as group:
            group.create_task(self._watch(), name="own registration")
            while True:
                session = await self.store.session()
                await self.open()
                while not session.lost.is_set():
                    if self._written == self.node:
                        await race(session.lost.wait(), self._changes.wait())
                    elif not await self._rewrite():
                        break

    async def _watch(self) -> None:
        async for _ in self.store.watch(self._path):
            try:
                await self.store.get(self._path)
            except NotFound:
                self._written = None
                self._changes.notify()
            except Transient as error:
                log.debug("daemon.registration_unknown", error=str(error))

    async def _rewrite(self) -> bool:
        """Write the changes and notify all daemons; False when this session has no node.

        The counter on the folder is raised too, because a watch on the folder does not see the values of its nodes.
        """
        path, node = self._path, self.node
        backoff = Backoff(self.clock)
        while True:
            try:
                found, counter = await self.store.get(path), await self.store.get(paths.DAEMONS)
                stored = ownership.decode_daemon(found.value, path=path)
                session = await self.store.session()
                if stored.session_id != session.session_id:
                    return False
                if replace(stored, session_id="") != node:
                    written = ownership.encode_daemon(replace(node, session_id=session.session_id))
                    steps = [Replace(path, written, found.version), Replace(paths.DAEMONS, b"", counter.version)]
                    await self.store.transact(steps)
            except NotFound:
                return False
            except (Conflict, Transient, OutcomeUnknown) as error:
                await backoff.wait(error)
                continue
            self._written = node
            self._announced.notify()
            log.info("daemon.registration_updated", draining=node.draining, impaired=node.impaired)
            return True


def registration_of(
    daemon_id: str, engine: Engine, metadata: MetadataStore, clock: Clock, *, session_timeout_s: float
) -> Registration:
    """Return a daemon's registration, still without its address.

    A former run that was killed is known by its process: its claims are taken over without waiting for its session's
    end.
    """
    node = DaemonNode(
        daemon_id=daemon_id, address="", version=__version__, started_ms=clock.wall_ms(), process=process_mark()
    )

    def ended(other: DaemonNode) -> bool:
        if process_ended(other.process):
            engine.inherit(other.session_id)
            return True
        return False

    return Registration(
        metadata,
        node,
        clock=clock,
        patience_s=session_timeout_s * PATIENCE_SESSIONS,
        changed=engine.placement.become,
        ended=ended,
    )


PROC = Path("/proc")
STATE, STARTED = 0, 19
"""Fields of /proc/PID/stat behind the command's name."""


def process_mark() -> str:
    """Return the mark of this process, empty where it cannot be known."""
    machine, started = _machine(), _started(os.getpid())
    return f"{machine} {os.getpid()} {started}" if machine and started else ""


def process_ended(other: str) -> bool:
    """Whether the process with this mark has certainly ended; False does not prove that it lives."""
    boot, _, rest = other.partition(" ")
    namespace, _, rest = rest.partition(" ")
    process_id, _, started = rest.partition(" ")
    if not (process_id.isdecimal() and started) or _machine() != f"{boot} {namespace}":
        return False
    try:
        os.kill(int(process_id), 0)  # signal 0 only checks whether the process exists
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # there is one, and it is another user's
    now = _started(int(process_id))
    return now is not None and now != started


def _machine() -> str:
    """Return the machine's boot and namespace of process ids, empty when they cannot be read."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(PROC / 'self/ns/pid')}"  # noqa: PTH115 - a link to nowhere, read as text
    except OSError:
        return ""


def _started(process_id: int) -> str | None:
    """Return a process's start in ticks since the boot; empty when it is dead, None when that cannot be read."""
    try:
        fields = (PROC / str(process_id) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if fields[STATE] in {"Z", "X"} else fields[STARTED]
