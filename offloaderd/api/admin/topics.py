"""AdminService's calls about which topics there are and which are offloaded: lists, enabling, disabling."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from offloaderd.api.admin.messages import checked_policy, checked_prefix, selection
from offloaderd.api.away import metadata_trouble
from offloaderd.core.aio.each import each
from offloaderd.core.errors import NotFound, Transient
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.fleet.engine import Engine
from offloaderd.format.parsing import filled
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata.port import MetadataStore
from offloaderd.policy import store as stored
from offloaderd.policy.records.topic import TopicPolicy
from offloaderd.policy.rules import Surroundings
from offloaderd.policy.store import topic_policies
from offloaderd.protocol.v1 import admin_pb2, admin_pb2_grpc

if TYPE_CHECKING:
    from offloaderd.protocol.v1.admin_pb2_grpc import _ServicerContext as Context

COUNTED_TOPICS_MAX = 1000
"""Ledgers and entries are counted in lists of at most so many topics: each costs the source several requests."""


class TopicCalls(admin_pb2_grpc.AdminServiceServicer):
    """The part of AdminService that is about sets of topics. `source` None: the daemon has no ledger source."""

    def __init__(
        self,
        *,
        engine: Engine,
        metadata: MetadataStore,
        source: LedgerSource | None,
        places: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._engine = engine
        self._places = places
        self._metadata = metadata
        self._source = source

    async def ListTopics(self, request: admin_pb2.ListTopicsRequest, context: Context) -> admin_pb2.ListTopicsResponse:
        """Return the topics that have a policy or that the ledger source knows, in name order."""
        prefix = checked_prefix(request.prefix)
        tenant, namespace = (*prefix, None, None)[:2]
        failure = await metadata_trouble(self._metadata)
        if failure:
            rows = [
                admin_pb2.TopicSummary(topic=str(one.topic), enabled=True, owner=one.owner)
                for one in self._engine.statuses()
                if (one.topic.tenant, one.topic.namespace)[: len(prefix)] == prefix
            ]
            return admin_pb2.ListTopicsResponse(topics=rows, metadata_error=failure)
        policies = await topic_policies(self._metadata)
        known: set[TopicName] = set()
        if self._source is not None:
            known.update(await self._source.topics(tenant=tenant, namespace=namespace))
        topics = sorted(
            topic for topic in policies.keys() | known if (topic.tenant, topic.namespace)[: len(prefix)] == prefix
        )

        async def summary(topic: TopicName) -> admin_pb2.TopicSummary:
            found = policies.get(topic)
            policy = found if isinstance(found, TopicPolicy) else TopicPolicy(enabled=False)
            found_owner = await self._engine.owner_of(topic) if policy.active else None
            owner = found_owner.daemon_id if found_owner is not None else ""
            row = admin_pb2.TopicSummary(
                topic=str(topic),
                enabled=policy.enabled,
                owner=owner,
                selected_by=policy.selected_by if policy.enabled else "",
                partitioned=policy.partitioned,
                placement=self._engine.placed(topic, owner) if policy.active else "",
                paused_ms=policy.paused.since_ms if policy.paused is not None else 0,
            )
            if len(topics) <= COUNTED_TOPICS_MAX:
                row.ledgers, row.entries = await self._confirmed(topic) if topic in known else (0, 0)
            return row

        return admin_pb2.ListTopicsResponse(topics=await each(topics, summary))

    async def ListSelections(
        self, request: admin_pb2.ListSelectionsRequest, context: Context
    ) -> admin_pb2.ListSelectionsResponse:
        """Return the selections in the order of their patterns, each with how many topics it has enabled."""
        failure = await metadata_trouble(self._metadata)
        if failure:
            raise Transient(f"the metadata store is away: {failure}", hint="it alone has the patterns")
        found = await stored.selections(self._metadata)
        counts: Counter[str] = Counter()
        if found:
            policies = (await topic_policies(self._metadata)).values()
            counts.update(one.selected_by for one in policies if isinstance(one, TopicPolicy) and one.enabled)
        rows = [selection(pattern, found[pattern], counts[pattern]) for pattern in sorted(found)]
        return admin_pb2.ListSelectionsResponse(selections=rows)

    async def EnableTopic(
        self, request: admin_pb2.EnableTopicRequest, context: Context
    ) -> admin_pb2.EnableTopicResponse:
        """Enable a topic or all that a pattern matches, now and later, or change the policy of what is enabled."""
        pattern = TopicPattern.parse(request.topic)
        policy = checked_policy(request, Surroundings(places=self._places, has_source=self._source is not None))
        changes = await self._engine.select(pattern, policy, dry_run=request.dry_run)
        return filled(admin_pb2.EnableTopicResponse, pattern=pattern.text, topics=changes)

    async def DisableTopic(
        self, request: admin_pb2.DisableTopicRequest, context: Context
    ) -> admin_pb2.DisableTopicResponse:
        """Complete the open segments and stop offloading; what was offloaded stays readable."""
        pattern = TopicPattern.named(request.topic)  # one that is not taken any more can be taken back
        changes = await self._engine.deselect(pattern, dry_run=request.dry_run)
        return filled(admin_pb2.DisableTopicResponse, pattern=pattern.text, topics=changes)

    async def _confirmed(self, topic: TopicName) -> tuple[int, int]:
        """Count ledgers and confirmed entries; a topic that vanished meanwhile has none."""
        if self._source is None:
            return 0, 0
        try:
            ledgers = await self._source.ledgers(topic)
            entries = sum(ledger.entries for ledger in ledgers if ledger.closed)
            if ledgers and not ledgers[-1].closed:
                entries += (await self._source.confirmed(topic, ledgers[-1].ledger_id)).last_entry_id + 1
        except NotFound:
            return 0, 0
        return len(ledgers), entries


async def exists(source: LedgerSource, topic: TopicName) -> bool:
    """Whether the source knows the topic, without listing the others."""
    try:
        await source.ledgers(topic)
    except NotFound:
        return False
    return True
