"""The quotas of this daemon: followed as they are set, and compared with the use of each namespace.

Each daemon counts the stored bytes of the topics that it owns, and what was moved for each namespace, and writes that
every minute; so all know the sums of the cluster, and a bill loses a minute at most. Topics of a namespace whose quota
of stored bytes is used up stand still as if an operator had paused them: their entries stay in the source.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import Scope
from offloaderd.core.quotas import QUOTAS, Account, Usage
from offloaderd.metadata import nodes, paths
from offloaderd.policy import quotas
from offloaderd.policy.quotas import DaemonUsage, LevelQuotas
from offloaderd.topic.outage import TopicContext

log = structlog.get_logger(__name__)

PASS_S = 10.0
"""Pause between two comparisons."""
WRITE_S = 60.0
"""Pause between two records of the usage."""
SETTLE_S = 2 * WRITE_S + PASS_S
"""How long the records of two daemons may have the bytes of a topic that has moved."""


class QuotaKeeper:
    """Keeps the accounts of a daemon; `levels` are the quotas as they were set."""

    def __init__(
        self,
        context: TopicContext,
        *,
        enabled: Callable[[], Mapping[TopicName, object]],
        stored: Callable[[], Mapping[TopicName, int]],
        living: Callable[[], Mapping[str, object]],
        changed: Callable[[], None],
    ) -> None:
        """`enabled` are the cluster's topics, `stored` the bytes of those of this daemon, `living` the daemons.

        `changed` is called when topics of a namespace have to stand still, or may go on.
        """
        self.levels: dict[Scope, LevelQuotas] = {}
        self.others: dict[str, DaemonUsage] = {}
        """Usage that the other daemons have written, at the last look."""
        self.since_ms = 0
        """Begin of this daemon's sums."""
        self._accounts = context.accounts
        self._metadata = context.metadata
        self._clock, self._metrics = context.upload_context.clock, context.upload_context.metrics
        self._enabled, self._stored, self._living, self._changed = enabled, stored, living, changed
        self._written_s: float | None = None
        self._compared_s = self._clock.monotonic()
        self._recorded: tuple[Scope, ...] = ()
        """Namespaces of the last record, in its order."""
        self._levels_version: int | None = None
        self._shown: set[tuple[str, str]] = set()
        self._totals: deque[Counter[Scope]] = deque(maxlen=round(SETTLE_S / PASS_S))
        """Stored bytes of the cluster at the last passes."""

    async def refresh(self) -> None:
        """Read the quotas of all levels, and apply them. Raises Transient."""
        version = await self._stored_version()
        self.levels = await quotas.load(self._metadata, self.levels)
        self._levels_version = version
        self._accounts.follow({scope: one.quotas for scope, one in self.levels.items()})
        self._compare()

    async def refresh_if_changed(self) -> None:
        """Refresh before the change of another daemon is notified; one request without a change. Raises Transient."""
        if await self._stored_version() != self._levels_version:
            await self.refresh()

    async def _stored_version(self) -> int:
        """Return the version that every change of a level moves; -1 before the first one. Raises Transient."""
        found = await nodes.node(self._metadata, paths.QUOTAS)
        return found.version if found is not None else -1

    def counted_age_s(self) -> float | None:
        """Return the age of the oldest count in the use of the cluster, this daemon's or another living one's.

        None before the counts of the others, and this daemon's sums of its last run, have been read.
        """
        if not self.since_ms:
            return None
        living, now_ms = self._living(), self._clock.wall_ms()
        others_s = [(now_ms - one.at_ms) / 1000 for daemon_id, one in self.others.items() if daemon_id in living]
        return max([self._clock.monotonic() - self._compared_s, *others_s])

    async def run(self, daemon_id: str) -> None:
        """Count and compare until cancelled."""
        failing, before_s = False, self._clock.monotonic()
        while True:
            await self._clock.sleep(PASS_S)
            now_s = self._clock.monotonic()
            self._count(now_s - before_s)
            before_s = now_s
            try:
                await self._exchange(daemon_id, now_s)
            except OffloaderError as error:
                if not failing:
                    log.warning("usage.not_exchanged", path=paths.usage(daemon_id), error=str(error))
                failing = True
            else:
                failing = False
            self._totals.append(self._compare())

    def topics(self) -> Counter[Scope]:
        """Return the number of enabled topics of each namespace."""
        return Counter(Scope(topic.tenant, topic.namespace) for topic in self._enabled())

    def sums(self, scope: Scope) -> tuple[Usage, int]:
        """Return what all daemons have counted for a namespace, and since when (0: since now)."""
        total = replace(self._accounts.usage.get(scope, Usage()))
        for one in self.others.values():
            total.add(one.namespaces.get(scope, Usage()))
        begins = (self.since_ms, *(one.since_ms for one in self.others.values()))
        return total, min(filter(None, begins), default=0)

    def scopes(self) -> set[Scope]:
        """Return what has an account here, and the namespaces for which a daemon has counted something."""
        known = {one.scope for one in self._accounts}
        return known.union(self._accounts.usage, *(one.namespaces for one in self.others.values()))

    def _count(self, passed_s: float) -> None:
        """Add the time that bytes were stored."""
        stored = self._stored_here()
        for account in self._accounts:
            usage = account.usage
            usage.stored_bytes = stored[account.scope]
            if usage.stored_bytes:
                usage.stored_byte_s += usage.stored_bytes * passed_s
                seconds = self._metrics.namespace_stored_byte_seconds.labels(namespace=account.name)
                seconds.inc(usage.stored_bytes * passed_s)

    def _stored_here(self) -> Counter[Scope]:
        found: Counter[Scope] = Counter()
        for topic, size_bytes in self._stored().items():
            found[Scope(topic.tenant, topic.namespace)] += size_bytes
        return found

    async def _exchange(self, daemon_id: str, now_s: float) -> None:
        """Write this daemon's usage and read that of the others, once in a while. Raises Transient, Conflict.

        Raises CorruptData for sums of the last run that cannot be read: a bill is not begun again without an operator.
        """
        if self._written_s is not None and now_s - self._written_s < WRITE_S:
            return
        found = await quotas.usages(self._metadata)
        found.pop(daemon_id, None)
        self.others = found
        if not self.since_ms:  # once: what was written after it holds the sums already
            self._resume(await quotas.usage_of(self._metadata, daemon_id))
        own = self.own()
        self._recorded = tuple(own.namespaces)
        await quotas.put_usage(self._metadata, daemon_id, own)
        self._written_s = now_s

    def _resume(self, mine: DaemonUsage | None) -> None:
        """Continue the sums of the last run."""
        self.since_ms = mine.since_ms if mine is not None else self._clock.wall_ms()
        spaces = mine.namespaces if mine is not None else {}
        for scope, before in spaces.items():
            self._accounts.usage.setdefault(scope, Usage()).add(before)
        self._recorded = tuple(spaces)

    def own(self) -> DaemonUsage:
        """Return this daemon's usage now, new namespaces last."""
        usage = self._accounts.usage
        spaces = {scope: replace(usage.get(scope, Usage())) for scope in (*self._recorded, *usage)}
        used = {scope: one for scope, one in spaces.items() if one != Usage()}
        return DaemonUsage(since_ms=self.since_ms, at_ms=self._clock.wall_ms(), namespaces=used)

    def _compare(self) -> Counter[Scope]:
        """Compare the use of the cluster with the quotas, and show both; returns the stored bytes.

        Of those the least of the last passes counts: bytes that were there all the time are in no record twice.
        """
        stored = self._stored_here() + quotas.stored_of(self.others, self._living())
        lasting = {scope: min((size, *(one[scope] for one in self._totals))) for scope, size in stored.items()}
        here = {Scope(topic.tenant, topic.namespace) for topic in self._stored()}
        if self._accounts.count(self.topics(), Counter(lasting), here):
            over = [one.name for one in self._accounts if one.over_since_ms]
            log.warning("quota.stored_bytes", used_up=over, hint="nothing more of these is offloaded")
            self._changed()
        self._show()
        self._compared_s = self._clock.monotonic()
        return stored

    def _show(self) -> None:
        shown: set[tuple[str, str]] = set()
        for account in self._accounts:
            for name in QUOTAS:
                limit, used = account.limits.limit(name), used_of(account, name)
                if used is not None:
                    self._metrics.namespace_used.labels(namespace=account.name, quota=name).set(used)
                if limit is not None and name != "weight":
                    self._metrics.namespace_quota.labels(namespace=account.name, quota=name).set(limit)
                    shown.add((account.name, name))
        for gone in self._shown - shown:
            self._metrics.namespace_quota.remove(*gone)
        self._shown = shown


def used_of(account: Account, name: str) -> int | None:
    """Return the use of a quota now, None for a rate or a weight, which is not used up."""
    match name:
        case "stored_bytes":
            return account.stored_bytes
        case "topics":
            return account.topics
        case "readers" | "calls":
            return account.open[name]
        case "unpack_bytes":
            return account.unpacked.used + account.waiting.used
    return None
