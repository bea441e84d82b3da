"""A daemon's registration: the ephemeral node that tells the others that it lives, where, and whether it takes topics.

A node under our id is one of three things: ours of this session (an earlier try whose answer was lost), ours of a
session that we lost (it is deleted, for nobody else has our id, our address and our moment of starting), or another
run's. That goes with that run's session and is waited for, unless its process is proven to have ended: then it is
deleted as well, and the topics that this session still holds are ours to claim. Were the proof wrong, the other run
would be deposed as by anybody else, and commit nothing.
"""

from collections.abc import Callable
from dataclasses import replace

import structlog

from offloaderd import __version__
from offloaderd.core.aio.groups import Group
from offloaderd.core.aio.signal import Signal, race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, NotFound, OutcomeUnknown, Transient
from offloaderd.core.retry import Backoff
from offloaderd.fleet import processes
from offloaderd.fleet.engine import Engine
from offloaderd.metadata import paths
from offloaderd.metadata.port import MetadataStore, Replace
from offloaderd.metadata.records import daemon as daemon_record
from offloaderd.metadata.records.daemon import DaemonNode

log = structlog.get_logger(__name__)

LOOK_AGAIN_S = 0.5
PATIENCE_SESSIONS = 1.5
"""A former run's node goes with its session; somewhat longer than one lasts, and it is another daemon's."""


def nobody(_: DaemonNode) -> bool:
    """Take no run for ended."""
    return False


async def register(
    store: MetadataStore,
    node: DaemonNode,
    *,
    clock: Clock,
    patience_s: float,
    ended: Callable[[DaemonNode], bool] = nobody,
) -> DaemonNode:
    """Announce this daemon under its id, and return what is stored: the node with the session that holds it.

    `ended` says whether another run has ended for certain; its node is deleted. Raises Conflict when another run of
    this daemon has the id, and still does after `patience_s`.
    """
    path = paths.daemon(node.daemon_id)
    deadline = clock.monotonic() + patience_s
    backoff = Backoff(clock)
    while True:
        session = await store.session()
        mine = replace(node, session_id=session.session_id)
        try:
            await store.create(path, daemon_record.encode(mine), ephemeral=True)
        except (OutcomeUnknown, Transient) as error:
            await backoff.wait(error)
        except Conflict:
            stored = await _ours(store, path, mine, clock, deadline, ended)
            if stored is not None:
                return stored
        else:
            return mine


async def _ours(
    store: MetadataStore,
    path: str,
    mine: DaemonNode,
    clock: Clock,
    deadline: float,
    ended: Callable[[DaemonNode], bool],
) -> DaemonNode | None:
    """Return the node that is there if this session holds it. One that nobody holds any more is deleted on the way."""
    try:
        found = await store.get(path)
        other = daemon_record.decode(found.value, path=path)
        if replace(mine, session_id=other.session_id, draining=other.draining, impaired=other.impaired) == other:
            if other.session_id == mine.session_id:
                return other
            await store.delete(path, found.version)
            return None
        if ended(other):
            log.info("daemon.succeeded", daemon_id=mine.daemon_id, process=other.process, session_id=other.session_id)
            await store.delete(path, found.version)
            return None
    except (Conflict, NotFound, Transient, OutcomeUnknown) as error:
        log.debug("daemon.changing", path=path, error=str(error))
        return None
    if clock.monotonic() >= deadline:
        raise Conflict(
            f"a daemon with the id {mine.daemon_id!r} is already running at {other.address}",
            hint="stop it, or give this one another id (daemon.id)",
        )
    log.info("daemon.waiting", daemon_id=mine.daemon_id, address=other.address)
    await clock.sleep(LOOK_AGAIN_S)
    return None


class Registration:
    """Keeps a daemon's registration in place and true; `changed` hears of every change before it is written."""

    def __init__(
        self,
        store: MetadataStore,
        node: DaemonNode,
        *,
        clock: Clock,
        patience_s: float,
        changed: Callable[[DaemonNode], None] = lambda _: None,
        ended: Callable[[DaemonNode], bool] = nobody,
    ) -> None:
        self.node = node
        self._store = store
        self._clock = clock
        self._patience_s = patience_s
        self._changed = changed
        self._ended = ended
        self._wanted = Signal()
        self._unreached_s: float | None = None
        self._written: DaemonNode | None = None
        self._told = Signal()

    async def open(self) -> None:
        """Register. Raises Conflict when another run of this daemon still has the id."""
        stored = await register(
            self._store, self.node, clock=self._clock, patience_s=self._patience_s, ended=self._ended
        )
        self._written = replace(stored, session_id="")
        self._told.notify()

    def say(self, *, draining: bool | None = None, impaired: str | None = None) -> None:
        """Change what is registered; `run` writes it."""
        node = self.node
        self.node = replace(
            node,
            draining=node.draining if draining is None else draining,
            impaired=node.impaired if impaired is None else impaired,
        )
        if self.node != node:
            self._changed(self.node)
            self._wanted.notify()

    def reached_at(self, address: str) -> None:
        """Set the address before it is registered: it is known only when the server listens."""
        self.node = replace(self.node, address=address)

    def probed(self, *, reached: bool, patience_s: float) -> None:
        """Take note of whether the bucket answered; silent for `patience_s` seconds it makes this daemon impaired."""
        now = self._clock.monotonic()
        if reached:
            self._unreached_s = None
            self.say(impaired="")
        elif self._unreached_s is None:
            self._unreached_s = now
        elif now - self._unreached_s >= patience_s:
            self.say(impaired="it cannot reach the bucket")

    async def told(self) -> None:
        """Return when what was last said is stored, so that the others know it or are about to."""
        while self._written != self.node:
            await self._told.wait()

    async def run(self) -> None:
        """Keep the registration until cancelled: after a lost session, or a stranger's deletion, it is made again."""
        async with Group() as group:
            group.create_task(self._watch(), name="own registration")
            while True:
                session = await self._store.session()
                await self.open()
                while not session.lost.is_set():
                    if self._written == self.node:
                        await race(session.lost.wait(), self._wanted.wait())
                    elif not await self._rewrite():
                        break

    async def _watch(self) -> None:
        """Look after the node whenever it changes."""
        path = paths.daemon(self.node.daemon_id)
        async for _ in self._store.watch(path):
            try:
                await self._store.get(path)
            except NotFound:
                self._written = None
                self._wanted.notify()
            except Transient as error:
                log.debug("daemon.registration_unknown", error=str(error))

    async def _rewrite(self) -> bool:
        """Write what has changed and tell everybody; False when there is no node of ours to write to.

        The counter on the folder is raised with it, because a watch on the folder does not see what is in its nodes.
        """
        path, node = paths.daemon(self.node.daemon_id), self.node
        backoff = Backoff(self._clock)
        while True:
            try:
                found, counter = await self._store.get(path), await self._store.get(paths.DAEMONS)
                stored = daemon_record.decode(found.value, path=path)
                session = await self._store.session()
                if stored.session_id != session.session_id:
                    return False
                if replace(stored, session_id="") != node:
                    written = daemon_record.encode(replace(node, session_id=session.session_id))
                    steps = [Replace(path, written, found.version), Replace(paths.DAEMONS, b"", counter.version)]
                    await self._store.transact(steps)
            except NotFound:
                return False
            except (Conflict, Transient, OutcomeUnknown) as error:
                await backoff.wait(error)
                continue
            self._written = node
            self._told.notify()
            log.info("daemon.registration_updated", draining=node.draining, impaired=node.impaired)
            return True


def registration_of(
    daemon_id: str, engine: Engine, metadata: MetadataStore, clock: Clock, *, session_timeout_s: float
) -> Registration:
    """Return a daemon's registration; its address is still to come.

    A former run that was killed is known by its process: what its session holds is taken without waiting for its end.
    """
    node = DaemonNode(
        daemon_id=daemon_id,
        address="",
        version=__version__,
        started_ms=clock.wall_ms(),
        process=processes.mark(),
    )

    def ended(other: DaemonNode) -> bool:
        if processes.has_ended(other.process):
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
