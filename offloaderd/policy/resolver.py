"""The effective policy of a topic: the stored policies of broker and namespaces over the daemon's own.

The narrowest level with a value counts: the topic by name, the pattern of its namespace, its namespace's policy,
another pattern that enabled it, the broker's policy, the daemon's settings, the built-in default. So a value of a
tenant's pattern is below one of the namespace.

The watcher of its node loads it, and its answers do not wait; a level that cannot be read keeps its last known value.
"""

from collections.abc import Collection, Sequence

import structlog

from offloaderd.core.aio import each
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import Breadth, TopicPattern
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import record
from offloaderd.metadata.port import MetadataStore
from offloaderd.policy.policies import Effective, Level, OffloadPolicies, Origin, effective
from offloaderd.policy.records import TopicPolicy, decode_level, decode_policy

log = structlog.get_logger(__name__)

Namespace = tuple[str, str]
"""Tenant and namespace."""


def spelled(namespace: Namespace) -> str:
    """Return `TENANT/NAMESPACE`; no pattern and no topic is written so."""
    return "/".join(namespace)


def node_of(where: Namespace | None) -> str:
    """Return the path of a namespace's policy, or of the broker's (None)."""
    return paths.BROKER_POLICY if where is None else paths.namespace_policy(*where)


class PolicyResolver:
    """The policies above the topics. `daemon` are the daemon's own levels, the narrowest first."""

    def __init__(self, store: MetadataStore, daemon: Sequence[Level] = ()) -> None:
        self._store = store
        self._daemon = tuple(daemon)
        self.loaded = False
        self.broker = OffloadPolicies()
        self.namespaces: dict[Namespace, OffloadPolicies] = {}
        self.named: tuple[Namespace, ...] = ()
        """Namespaces that have a node."""
        self.damaged: set[str] = set()
        """Paths of the nodes that cannot be read."""

    def follow(self, daemon: Sequence[Level]) -> None:
        """Replace the daemon's own levels."""
        self._daemon = tuple(daemon)

    async def load(self) -> None:
        """Read all stored levels. Raises Transient."""
        names = await namespaces(self._store)
        found = await each([None, *names], self._read)
        self.named = tuple(names)
        self.namespaces = {name: one for name, one in self.namespaces.items() if name in names}
        self.damaged &= {node_of(None), *map(node_of, names)}
        for where, policies in zip([None, *names], found, strict=True):
            self.take_over(where, policies)
        self.loaded = True

    async def _read(self, where: Namespace | None) -> OffloadPolicies | CorruptData | None:
        path = node_of(where)
        try:
            found = await record(self._store, path, decode_level)
            return found.policies if found is not None else None
        except CorruptData as error:
            if path not in self.damaged:
                log.error("policy.corrupt", path=path, error=str(error), hint="set it again")  # noqa: TRY400
            return error

    def take_over(self, where: Namespace | None, policies: OffloadPolicies | CorruptData | None) -> None:
        """Use these policies of a namespace, or of the broker (None); a damaged level keeps its last known value."""
        path = node_of(where)
        if isinstance(policies, CorruptData):
            self.damaged.add(path)
            return
        self.damaged.discard(path)
        if where is None:
            self.broker = policies or OffloadPolicies()
        elif policies is None:
            self.namespaces.pop(where, None)
        else:
            self.namespaces[where] = policies

    def copied(self) -> "PolicyResolver":
        """Return a copy."""
        book = PolicyResolver(self._store, self._daemon)
        book.broker, book.namespaces, book.loaded = self.broker, dict(self.namespaces), self.loaded
        book.named, book.damaged = self.named, set(self.damaged)
        return book

    def with_policies(self, where: Namespace | None, policies: OffloadPolicies | None) -> "PolicyResolver":
        """Return a copy with these policies of a namespace, or of the broker (None); policies None: without."""
        book = self.copied()
        book.take_over(where, policies)
        return book

    def policies_of(self, where: Namespace | None) -> OffloadPolicies:
        """Return the policies of a namespace, or of the broker (None)."""
        return self.broker if where is None else self.namespaces.get(where, OffloadPolicies())

    def effective(self, topic: TopicName, policy: TopicPolicy | None) -> Effective:
        """Return the effective policy of a topic with this policy of its own (None: without)."""
        name = (topic.tenant, topic.namespace)
        between = Level(Origin.NAMESPACE, self.policies_of(name), spelled(name))
        levels = [between, *self.above(name)]
        if policy is not None:
            policies, narrow = _level(topic, policy)
            levels.insert(0 if narrow else 1, policies)
        return effective(levels, known=policy is not None)

    def above(self, namespace: Namespace | None) -> list[Level]:
        """Return the levels above a namespace, or above the broker (None), the narrowest first."""
        broker = [] if namespace is None else [Level(Origin.BROKER, self.broker)]
        return [*broker, *self._daemon]

    @property
    def unread(self) -> Collection[Namespace]:
        """The namespaces whose policy could never be read."""
        return {name for name in self.named if node_of(name) in self.damaged and name not in self.namespaces}

    @property
    def offloading(self) -> Collection[Namespace]:
        """The namespaces whose policy offloads their topics."""
        return {name for name, one in self.namespaces.items() if one.offloads}

    async def of(self, topic: TopicName, *, fresh: bool = False) -> Effective:
        """Return a topic's effective policy; `fresh` reads the levels above it again. Raises Transient, CorruptData."""
        if not self.loaded:
            await self.load()
        elif fresh:
            above = [None, (topic.tenant, topic.namespace)]
            for where, policies in zip(above, await each(above, self._read), strict=True):
                self.take_over(where, policies)
        return self.effective(topic, await record(self._store, paths.policy(topic), decode_policy))


async def namespaces(store: MetadataStore) -> list[Namespace]:
    """Return the namespaces that have a policy."""
    tenants = await store.children(paths.NAMESPACE_POLICIES)
    below = await each([f"{paths.NAMESPACE_POLICIES}/{tenant}" for tenant in tenants], store.children)
    return [
        (paths.name_of(tenant), paths.name_of(name))
        for tenant, names in zip(tenants, below, strict=True)
        for name in names
    ]


def _level(topic: TopicName, policy: TopicPolicy) -> tuple[Level, bool]:
    """Return a topic's policy as a level, and whether that is narrower than its namespace's policy."""
    if not policy.selected_by or policy.selected_by == spelled((topic.tenant, topic.namespace)):
        return Level(Origin.TOPIC, policy, str(topic)), True
    try:
        pattern = TopicPattern.named(policy.selected_by)
    except InvalidInput:
        return Level(Origin.SELECTION, policy, policy.selected_by), False
    if pattern.breadth is Breadth.TOPIC:
        return Level(Origin.TOPIC, policy, str(pattern.topic)), True
    return Level(Origin.SELECTION, policy, pattern.text), pattern.breadth is Breadth.NAMESPACE
