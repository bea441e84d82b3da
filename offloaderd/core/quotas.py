"""Quotas of namespaces and tenants, and the account of each: what it uses now, and what it has used.

A quota of a namespace limits that namespace, one of a tenant all its namespaces together, and one of the broker level
each namespace without a value of its own. Rates delay: bytes are charged after they were moved, and the next ones wait
until these are paid for. Amounts refuse: a call beyond one raises Throttled. Rates, calls, readers and memory are
counted by each daemon for itself, stored bytes and topics for the cluster.

An account is also the flow of its namespace in all shared limits (`limits.FLOW`). With a weight of its tenant, the
namespaces of that tenant are one flow.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Throttled
from offloaderd.core.limits import ByteBudget, Flow, TokenBucket
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import Scope

UNLIMITED = -1
"""A quota that ends the search through the levels without a limit."""
RECHECK_S = 1.0
"""Longest pause of a task that waits for a rate, so that a higher rate helps it at once."""
UNUSED_S = 3600.0
"""How long nothing has used an account before it is dropped."""
LOOK_S = 60.0
"""Pause between two searches for accounts that are not used."""
NOBODY = "-"
"""Name of the account of namespaces without topics and quotas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """The quotas of a level; None leaves a value to the next level, a negative number is no limit."""

    write_bytes_per_s: int | None = None
    read_bytes_per_s: int | None = None
    stored_bytes: int | None = None
    topics: int | None = None
    readers: int | None = None
    calls: int | None = None
    unpack_bytes: int | None = None
    weight: int | None = None

    def limit(self, name: str) -> int | None:
        """Return a limit, None without one."""
        value: int | None = getattr(self, name)
        return value if value is not None and value >= 0 else None

    def over(self, other: "Quotas") -> "Quotas":
        """Return these values, and those of the other level for what they leave to it."""
        return Quotas(**{name: getattr(other if getattr(self, name) is None else self, name) for name in QUOTAS})


QUOTAS = tuple(one.name for one in fields(Quotas))
"""Names of the quotas, in order."""
NONE = Quotas()


def named(scope: Scope) -> str:
    """Return a level as it is written: TENANT/NAMESPACE, TENANT, or * for the broker level."""
    return "/".join(filter(None, scope)) or "*"


@dataclass(slots=True, kw_only=True)
class Usage:
    """Sums of a namespace for its bill, of one daemon; `stored_bytes` are those of the topics that it owns now."""

    written_bytes: int = 0
    read_bytes: int = 0
    requests: int = 0
    stored_byte_s: float = 0.0
    stored_bytes: int = 0

    def add(self, other: "Usage") -> None:
        """Add the sums of another daemon, or of an earlier run, but not what is stored now."""
        self.written_bytes += other.written_bytes
        self.read_bytes += other.read_bytes
        self.requests += other.requests
        self.stored_byte_s += other.stored_byte_s


@dataclass(eq=False)
class Account(Flow):
    """The account of a namespace, or of a tenant (which has no `above`)."""

    scope: Scope
    above: "Account | None"
    clock: Clock
    metrics: Metrics
    limits: Quotas = NONE
    usage: Usage = field(default_factory=Usage)
    stored_bytes: int = 0
    """In the cluster, at the last look."""
    topics: int = 0
    """Enabled in the cluster, at the last look."""
    here: bool = False
    """Whether this daemon works on a topic of it, enabled or not, at the last look."""
    over_since_ms: int = 0
    """Since when its quota of stored bytes, or the tenant's, is used up; 0: it is not."""

    def __post_init__(self) -> None:
        self.name = named(self.scope) if self.scope.tenant else NOBODY
        self.both: tuple[Account, ...] = (self,) if self.above is None else (self, self.above)
        self.open: Counter[str] = Counter()
        """Calls and readers now."""
        self.unpacked, self.waiting = ByteBudget(0), ByteBudget(0)
        """Memory of unpacked messages, and of chunks that wait for the rest of theirs: half of the quota each."""
        self.buckets = {name: TokenBucket(0, self.clock) for name in ("write_bytes_per_s", "read_bytes_per_s")}
        self.used_s, self._moved = self.clock.monotonic(), (0, 0, 0)
        self._written = self.metrics.namespace_written_bytes.labels(namespace=self.name)
        self._read = self.metrics.namespace_read_bytes.labels(namespace=self.name)
        self._requests = self.metrics.namespace_requests.labels(namespace=self.name)

    def counted(self) -> Flow:
        """Return the flow that its requests belong to: the tenant's, if that has a weight."""
        return self if self.above is None or self.above.limits.weight is None else self.above

    def look(self) -> None:
        """Note the time, in `used_s`, if something uses it, or has used it since the last look."""
        before, self._moved = self._moved, (self.usage.written_bytes, self.usage.read_bytes, self.usage.requests)
        paid = all(bucket.full for bucket in self.buckets.values())
        held = any(self.open.values()) or self.unpacked.used or self.waiting.used
        stored = self.topics or self.stored_bytes or self.usage.stored_bytes
        if self.here or stored or held or not paid or self._moved != before:
            self.used_s = self.clock.monotonic()

    def follow(self, limits: Quotas) -> None:
        """Apply other quotas. Those who wait for a rate that has changed go on."""
        for name in self.buckets:
            if self.limits.limit(name) != limits.limit(name):
                self.buckets[name] = TokenBucket(limits.limit(name) or 0, self.clock)
        self.limits = limits
        self.weight = limits.weight or Flow.weight
        unpack_bytes = limits.limit("unpack_bytes") or 0
        self.unpacked.follow(unpack_bytes - unpack_bytes // 2)
        self.waiting.follow(unpack_bytes // 2)

    @property
    def write_behind(self) -> bool:
        """Whether bytes that were taken in are not paid for yet."""
        return any(one.behind_s("write_bytes_per_s") for one in self.both)

    def behind_s(self, name: str) -> float:
        """Return the seconds until all bytes of a rate are paid for, without the tenant's."""
        return self.buckets[name].wait_s if self.limits.limit(name) is not None else 0.0

    async def may_write(self, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        """Wait until all bytes that were taken in are paid for; until then `meanwhile` is called at intervals."""
        await self._paid("write_bytes_per_s", meanwhile)

    async def may_read(self) -> None:
        """Wait until all bytes that were sent to readers are paid for."""
        await self._paid("read_bytes_per_s")

    async def _paid(self, name: str, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        for one in self.both:
            if not one.behind_s(name):
                continue
            began_s = self.clock.monotonic()
            while wait_s := one.behind_s(name):
                await self.clock.sleep(min(wait_s, RECHECK_S))
                if meanwhile is not None:
                    await meanwhile()
            waited_s = self.clock.monotonic() - began_s
            self.metrics.namespace_waited_seconds.labels(namespace=self.name, quota=name).inc(waited_s)

    def wrote(self, size_bytes: int) -> None:
        """Count bytes that were taken in."""
        self.usage.written_bytes += size_bytes
        self._written.inc(size_bytes)
        for one in self.both:
            one.buckets["write_bytes_per_s"].take(size_bytes)

    def sent(self, size_bytes: int) -> None:
        """Count bytes that were sent to a reader."""
        self.usage.read_bytes += size_bytes
        self._read.inc(size_bytes)
        for one in self.both:
            one.buckets["read_bytes_per_s"].take(size_bytes)

    def begin(self, *kinds: str) -> None:
        """Count a call, or a reader as well, until `end`. Raises Throttled when its quota, or the tenant's, is used."""
        for one in self.both:
            for kind in kinds:
                limit = one.limits.limit(kind)
                if limit is not None and one.open[kind] >= limit:
                    raise one.refused(kind, f"has {limit} {kind} open already")
        for one in self.both:
            one.open.update(kinds)
        if "calls" in kinds:
            self.usage.requests += 1
            self._requests.inc()

    def end(self, *kinds: str) -> None:
        """End what `begin` counted."""
        for one in self.both:
            one.open.subtract(kinds)

    def refused(self, quota: str, what: str) -> Throttled:
        """Count a refusal; return its error."""
        self.metrics.namespace_refused.labels(namespace=self.name, quota=quota).inc()
        limit = self.limits.limit(quota)
        return Throttled(f"{self.name} {what}: its quota is {quota} = {limit}", hint=_whom(self.scope))

    @asynccontextmanager
    async def unpacking(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold room in the quota for unpacked bytes; waits for it."""
        limited = [one for one in self.both if one.limits.limit("unpack_bytes") is not None]
        held: list[Account] = []
        try:
            for one in limited:
                await one.unpacked.acquire(size_bytes)
                held.append(one)
            yield
        finally:
            for one in held:
                one.unpacked.release(size_bytes)

    def wait_for_rest(self, more_bytes: int) -> None:
        """Count the bytes of chunks that wait, fewer if negative. Raises Throttled beyond the quota."""
        if more_bytes > 0:
            for one in self.both:
                limit = one.limits.limit("unpack_bytes")
                if limit is not None and one.waiting.used and one.waiting.used + more_bytes > limit // 2:
                    raise one.refused("unpack_bytes", f"has chunks of messages that wait in {one.waiting.used} bytes")
        for one in self.both:
            one.waiting.used += more_bytes

    @property
    def over_stored(self) -> str:
        """Why no more may be stored; empty: more may."""
        for one in self.both:
            limit = one.limits.limit("stored_bytes")
            if limit is not None and one.stored_bytes >= limit:
                return f"the quota stored_bytes = {limit} of {one.name}; {_whom(one.scope)}"
        return ""


def _whom(scope: Scope) -> str:
    """Return whom to ask for a greater quota."""
    admin = f"{scope.tenant}/*" if scope.namespace is not None else "*"
    return f"`offloadctl quotas show {named(scope)}` shows the use; an administrator of {admin} may raise the quota"


class Accounts:
    """All accounts of a daemon, by scope.

    A namespace gets one when it has a topic in the cluster, a quota, or a reader here. Once it has none of these, and
    nothing held or to be paid for, it loses the account after UNUSED_S: its sums stay, and the next use makes another.
    """

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock, self._metrics = clock, metrics
        self._known: dict[Scope, Account] = {}
        self._levels: dict[Scope, Quotas] = {}
        self._looked_s = clock.monotonic()
        self.usage: dict[Scope, Usage] = {}
        """Sums of all namespaces that this daemon has counted, with and without an account."""
        self.nobody = Account(Scope(), None, clock, metrics)
        """The account of all namespaces without one, whose names are any caller's."""

    def __iter__(self) -> Iterator[Account]:
        """Yield the accounts of namespaces and tenants, in order."""
        return iter([one for _, one in sorted(self._known.items(), key=lambda item: named(item[0]))])

    @property
    def levels(self) -> dict[Scope, Quotas]:
        """The quotas of all levels that set some."""
        return self._levels

    def of(self, topic: TopicName) -> Account:
        """Return the account of a topic's namespace, which gets one."""
        return self.at(Scope(topic.tenant, topic.namespace))

    def find(self, scope: Scope) -> Account | None:
        """Return the account of a scope, None without one."""
        return self._known.get(scope)

    def known(self, scope: Scope) -> Account:
        """Return the account of a scope, else that of its tenant, else that of nobody."""
        return self._known.get(scope) or self._known.get(Scope(scope.tenant)) or self.nobody

    def limits_topics(self, namespace: Scope) -> bool:
        """Whether the number of topics of a namespace, or of its tenant, has a limit."""
        return any(self.effective(one).limit("topics") is not None for one in (namespace, Scope(namespace.tenant)))

    def no_room(self, namespace: Scope, topics: Mapping[Scope, int]) -> str:
        """Return why a namespace may not have one more topic beside these; empty: it may. A refusal is counted.

        The namespace needs no account: this may be its first topic.
        """
        for one in (namespace, Scope(namespace.tenant)):
            limit = self.effective(one).limit("topics")
            have = sum(many for scope, many in topics.items() if one.covers(scope))
            if limit is not None and have >= limit:
                self._metrics.namespace_refused.labels(namespace=self.known(one).name, quota="topics").inc()
                return f"{named(one)} has {have} topics: its quota is topics = {limit}; {_whom(one)}"
        return ""

    def at(self, scope: Scope) -> Account:
        """Return the account of a namespace or tenant, which gets one."""
        found = self._known.get(scope)
        if found is None:
            self.drop_unused()
            above = self.at(Scope(scope.tenant)) if scope.namespace is not None else None
            usage = self.usage.setdefault(scope, Usage()) if scope.namespace is not None else Usage()
            found = self._known[scope] = Account(scope, above, self._clock, self._metrics, usage=usage)
            found.follow(self.effective(scope))
            found.over_since_ms = self._clock.wall_ms() if found.over_stored else 0  # `count` finds what has changed
        return found

    def drop_unused(self) -> None:
        """Drop the accounts that nothing has used for UNUSED_S, with their series; at most once in LOOK_S."""
        now_s = self._clock.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        for one in self._known.values():
            one.look()
        parents = {one.above for one in self._known.values()}
        unused = [one for one in self._known.values() if now_s - one.used_s >= UNUSED_S and one not in parents]
        for one in unused:
            if one.scope not in self._levels:
                del self._known[one.scope]
                self._metrics.drop_namespace(one.name)
                if one.usage == Usage():
                    self.usage.pop(one.scope, None)

    def effective(self, scope: Scope) -> Quotas:
        """Return the quotas that hold for a namespace, or for a tenant as a whole."""
        own = self._levels.get(scope, NONE)
        return own.over(self._levels.get(Scope(), NONE)) if scope.namespace is not None else own

    def follow(self, levels: Mapping[Scope, Quotas]) -> None:
        """Apply the quotas of all levels."""
        self._levels = dict(levels)
        for scope in levels:
            if scope.tenant is not None:
                self.at(scope)
        for scope, account in self._known.items():
            account.follow(self.effective(scope))
        self.nobody.follow(self.effective(Scope("", "")))

    def count(self, topics: Counter[Scope], stored: Counter[Scope], here: Collection[Scope] = ()) -> bool:
        """Take the enabled topics and the stored bytes of each namespace; whether one may store now, or may not.

        `here` are the namespaces of the topics that this daemon works on. Accounts that are not used are dropped.
        """
        totals = [Counter[Scope](), Counter[Scope]()]
        for total, counts in zip(totals, (topics, stored), strict=True):
            for scope, many in counts.items():
                self.at(scope)
                total[scope] += many
                total[Scope(scope.tenant)] += many
        for scope, one in self._known.items():
            one.topics, one.stored_bytes = (total[scope] for total in totals)
            one.here = scope in here
        changed = [one for one in self._known.values() if bool(one.over_stored) is not bool(one.over_since_ms)]
        for one in changed:
            one.over_since_ms = self._clock.wall_ms() if one.over_stored else 0
        self.drop_unused()
        return bool(changed)
