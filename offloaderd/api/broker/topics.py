"""Topics of brokers' requests: those without a policy, which are enabled, and shadow topics, which have a source topic.

The role `offload` is enough to enable a topic, so that is bounded: only topics of Pulsar's list, if that can be read,
with the requested ledger; names of a length that brokers accept; a limit of topics in a namespace, of namespaces in a
tenant, and of tenants.

A broker reads ledgers of a shadow topic's source under the shadow's name (PIP-180). The shadow's list has these
ledgers, but neither the driver's metadata nor the attempt's id name the source. So it is read from a property of the
shadow's list. An id alone would open the ledger of any topic; here the caller needs the role for the source as well.
"""

import asyncio

import structlog

from offloaderd.api.gate import check_source
from offloaderd.core.errors import Conflict, InvalidInput, NotFound, TopicUnknown, Transient
from offloaderd.core.limits import Bounded
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import of_topic
from offloaderd.fleet.engine import Engine
from offloaderd.ledgers.port import LedgerRegister, ShadowTopics
from offloaderd.metadata import paths
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.policy import store as policies
from offloaderd.policy.records import TopicPolicy
from offloaderd.upkeep.grants.closed_ledger import is_held

log = structlog.get_logger(__name__)

NAME_BYTES_MAX = 1024
"""Length of a managed ledger's name. It becomes a node's name and user metadata of objects: 2 KiB with S3."""
NAMESPACE_TOPICS_MAX = 10_000
TENANT_NAMESPACES_MAX = 1_000


class BrokerTopics:
    """Enables topics. `register` is None when Pulsar's list cannot be read; the limits may change."""

    def __init__(self, engine: Engine, register: LedgerRegister | None) -> None:
        self.namespace_topics_max = NAMESPACE_TOPICS_MAX
        self.tenant_namespaces_max = TENANT_NAMESPACES_MAX
        self._engine = engine
        self._register = register
        self._one_by_one = asyncio.Lock()  # so that none comes in between counting and enabling

    async def enable(self, topic: TopicName, ledger_id: int) -> None:
        """Enable a topic without a policy.

        Raises InvalidInput for a name that is too long, TopicUnknown when Pulsar's list has no such topic or ledger,
        Conflict for a topic that was disabled or one too many, Transient when the list cannot be read.
        """
        if len(topic.managed_ledger) > NAME_BYTES_MAX:
            raise InvalidInput(
                f"a name of {len(topic.managed_ledger)} bytes is too long to be enabled by its broker",
                hint=f"{NAME_BYTES_MAX} is the most, as a managed ledger's name; an admin may enable longer ones",
            )
        async with self._one_by_one:
            said = (await policies.read(self._engine.context.metadata, [topic])).get(topic)
            if said is None:
                await self._check_listed(topic, ledger_id)
                await self._check_room(topic)
                self._count("enabled")
                log.info("topic.enabled_by_broker", topic=str(topic))
                await self._engine.select(of_topic(topic), TopicPolicy())
            elif not isinstance(said, TopicPolicy) or not said.active:
                raise Conflict(
                    f"{topic} is disabled, and its broker wants it offloaded",
                    hint=f"offloadctl topics enable {topic}, or take the driver from the policies of its namespace",
                )

    async def _check_listed(self, topic: TopicName, ledger_id: int) -> None:
        if self._register is None:
            return
        try:
            if ledger_id in await self._register.listed(topic):
                return
            what = f"ledger {ledger_id} of {topic}"
        except NotFound:
            what = str(topic)
        self._count("unlisted")
        raise TopicUnknown(
            f"Pulsar's list has no {what}, so nothing of it is offloaded",
            hint="bookkeeper.servers and managed_ledgers_root of this daemon may be those of another cluster",
        )

    async def _check_room(self, topic: TopicName) -> None:
        """Raise Conflict if the new name would exceed the limit of its namespace, tenant or deployment."""
        path = paths.topic(topic)
        namespace, most_above = (
            f"{topic.tenant}/{topic.namespace}",
            ("tenant_namespaces_max", self.tenant_namespaces_max),
        )
        for whose, what, setting, most in (
            (namespace, "topics", "namespace_topics_max", self.namespace_topics_max),
            (namespace, "domains", *most_above),
            (topic.tenant, "namespaces", *most_above),
            ("this deployment", "tenants", *most_above),
        ):
            path, _, name = path.rpartition("/")
            known = await self._engine.context.metadata.children(path)
            if name in known:
                return
            if len(known) >= most:
                self._count("full")
                raise Conflict(
                    f"{whose} has {len(known)} {what} here, and brokers may add to {most} at most",
                    hint=f"access.{setting} sets the limit; offloadctl topics enable and patterns go beyond it",
                )

    def _count(self, outcome: str) -> None:
        self._engine.context.upload_context.metrics.broker_topics.labels(outcome=outcome).inc()


KNOWN_MAX = 10_000
"""Shadow topics whose answers are kept, the most recent ones."""


class ShadowSources:
    """Source topics of shadow topics.

    Whether a topic is a shadow never changes, so the last answer counts while Pulsar's metadata cannot be read.
    """

    def __init__(self, register: object) -> None:
        """`register` is Pulsar's list, if it can be read."""
        self._register = register if isinstance(register, ShadowTopics) else None
        self._known: Bounded[TopicName, TopicName | None] = Bounded(KNOWN_MAX)

    async def source_of(self, stored: TopicMap, ledger_id: int) -> TopicName | None:
        """Return the source topic of a ledger of a shadow topic, None for a ledger of the topic itself.

        Raises NotAllowed (the caller may not read the source), Transient (Pulsar's metadata cannot be read, nor could
        before).
        """
        if self._register is None or is_held(stored, ledger_id):
            return None
        source = await self._asked(self._register, stored.topic)
        if source is not None:
            check_source(source)
            log.info("ledger.of_source", topic=str(stored.topic), source=str(source), ledger_id=ledger_id)
        return source

    async def _asked(self, register: ShadowTopics, topic: TopicName) -> TopicName | None:
        try:
            source = await register.source_topic(topic)
        except NotFound:
            return None
        except Transient:
            if topic not in self._known:
                raise
            return self._known[topic]
        self._known[topic] = source
        return source
