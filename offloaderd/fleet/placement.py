"""Placement of topics and jobs: rendezvous hashing over the registered daemons.

Every daemon computes the same ranking from the same registrations, so nothing is negotiated and nothing is stored. When
a daemon joins or leaves, only the topics move for which it ranks first. Views may differ for a moment. That costs a
wait, never an entry: the claim decides which daemon works (ownership.py), the epoch which one commits
(segment/claim/attempt_log.py).
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b

import structlog

from offloaderd.core.aio import Group, Signal, each
from offloaderd.core.clock import Clock
from offloaderd.core.errors import CorruptData, NotFound, OffloaderError
from offloaderd.core.retry import until_answered
from offloaderd.fleet.settings import PlacementSettings
from offloaderd.metadata import paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import ownership
from offloaderd.metadata.records.ownership import DaemonNode

log = structlog.get_logger(__name__)

NOBODY = DaemonNode(daemon_id="", address="", version="", started_ms=0)


def score(daemon_id: str, key: str) -> int:
    """Return how well a daemon suits a key: the same number in every process, on every machine."""
    return int.from_bytes(blake2b(f"{len(daemon_id)} {daemon_id} {key}".encode(), digest_size=8).digest())


def standing(node: DaemonNode) -> int:
    """Return 0 for a working daemon, 1 for one that cannot reach the bucket, 2 for one that is draining."""
    return 2 if node.draining else 1 if node.impaired else 0


def ranked(key: str, daemons: Iterable[DaemonNode]) -> list[DaemonNode]:
    """Return the daemons for a key, the best first. Impaired and draining ones are last, but not left out."""
    return sorted(daemons, key=lambda one: _order(one, key))


def _order(node: DaemonNode, key: str) -> tuple[int, int, str]:
    return (standing(node), -score(node.daemon_id, key), node.daemon_id)


class Placement:
    """The registered daemons, and the rank of this one for each key."""

    def __init__(self, store: MetadataStore, clock: Clock, options: PlacementSettings | None = None) -> None:
        """`run` has to run. `version` grows, and `changed` fires, whenever a ranking may have changed."""
        self.options = options or PlacementSettings()
        self.changed = Signal()
        self.me = NOBODY
        self.version = 0
        self._store = store
        self._clock = clock
        self._registered: dict[str, DaemonNode] | None = None
        self._absent: dict[str, DaemonNode] = {}
        self._absent_until = 0.0
        self._expecting = Signal()
        self._session_id = ""
        self._since = clock.monotonic()
        self.members: Mapping[str, DaemonNode] = {}
        """All daemons that count, by id; this one always, registered or not."""
        self._ranks: dict[str, int] = {}

    @property
    def known(self) -> bool:
        """Whether the registrations have been read; until then this daemon leads no job."""
        return self._registered is not None

    @property
    def unsettled_s(self) -> float:
        """Seconds until no daemon has joined or left for `settle_s`, so that topics may move."""
        return max(0.0, self._since + self.options.settle_s - self._clock.monotonic())

    def ranking(self, key: str) -> list[DaemonNode]:
        """Return the daemons for a key, the best first."""
        return ranked(key, self.members.values())

    def first(self, key: str) -> DaemonNode:
        """Return the best daemon for a key."""
        return min(self.members.values(), key=lambda one: _order(one, key))

    def rank(self, key: str) -> int:
        """Return this daemon's rank for a key; 0 is the first."""
        found = self._ranks.get(key)
        if found is None:
            mine = _order(self.me, key)
            found = sum(_order(one, key) < mine for one in self.members.values() if one is not self.me)
            self._ranks[key] = found
        return found

    def leads(self, job: str) -> bool:
        """Whether this daemon should run a job of the whole cluster now.

        For moments two daemons may lead, or none: a job must bear both. A daemon that is not registered, or is
        draining, never leads.
        """
        registered = self._registered is not None and self.me.daemon_id in self._registered
        return registered and not self.me.draining and self.rank(f"job {job}") == 0

    def become(self, me: DaemonNode) -> None:
        """Replace this daemon's own node."""
        if me != self.me:
            self.me = me
            self._count()

    async def run(self) -> None:
        """Follow the registrations until cancelled."""
        async with Group() as group:
            group.create_task(self._follow(), name="registered daemons")
            group.create_task(self._forget_absent(), name="absent daemons")

    async def _follow(self) -> None:
        async for _ in self._store.watch(paths.DAEMONS):
            await until_answered(
                self._clock,
                self._refresh,
                passes=OffloaderError,
                on_error=lambda error: log.warning("daemons.unreadable", error=str(error)),
            )

    async def _refresh(self) -> None:
        """Read the registrations; a damaged one counts as missing."""
        session = await self._store.session()

        async def read(name: str) -> DaemonNode | None:
            path = f"{paths.DAEMONS}/{name}"
            try:
                return ownership.decode_daemon((await self._store.get(path)).value, path=path)
            except NotFound:
                return None
            except CorruptData as error:
                log.error("daemon.corrupt", path=path, error=str(error), hint="restart that daemon")  # noqa: TRY400
                return None

        found = await each(await self._store.children(paths.DAEMONS), read)
        if self._registered is not None and session.session_id != self._session_id:
            self._expect_back(self._registered)
        self._session_id = session.session_id
        first = self._registered is None
        self._registered = {node.daemon_id: node for node in found if node is not None}
        self._absent = {name: node for name, node in self._absent.items() if name not in self._registered}
        self._count(change_signal=first)

    def _expect_back(self, registered: Mapping[str, DaemonNode]) -> None:
        """Keep the other daemons after this one lost its session: they may have lost theirs as well, and come back."""
        self._absent = {name: node for name, node in registered.items() if name != self.me.daemon_id}
        self._absent_until = self._clock.monotonic() + self.options.settle_s
        self._expecting.notify()

    async def _forget_absent(self) -> None:
        while True:
            while self._absent:
                await self._clock.sleep(max(0.01, self._absent_until - self._clock.monotonic()))
                if self._clock.monotonic() >= self._absent_until:
                    self._absent = {}
                    self._count()
            await self._expecting.wait()

    def _count(self, *, change_signal: bool = False) -> None:
        """Collect the members; when a ranking may have changed, settle again and notify."""
        before = {name: standing(one) for name, one in self.members.items()}
        self.members = {**self._absent, **(self._registered or {}), self.me.daemon_id: self.me}
        self._ranks.clear()
        after = {name: standing(one) for name, one in self.members.items()}
        if change_signal or before != after:
            self._since = self._clock.monotonic()
            self.version += 1
            log.info("daemons.changed", daemons=after)
            self.changed.notify()
