"""AdminService: calls of operators, answered from the engine and the metadata store.

Answers about a topic that another daemon owns, or that is disabled, come from the metadata store. Mistakes in a
policy's values are reported by `policy.rules`. The interceptor turns OffloaderErrors into statuses.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from offloaderd.api.calls import Context, away, metadata_error
from offloaderd.api.manual_offload import ManualCalls
from offloaderd.api.paging import page
from offloaderd.core.aio import each, in_turns
from offloaderd.core.errors import CorruptData, InvalidInput, NotFound, OffloaderError, Transient
from offloaderd.core.health import Dependency
from offloaderd.core.model import Loss, TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.format.parsing import filled
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.unnamed import UnnamedPlace
from offloaderd.policy.policies import NAMES, Effective, OffloadPolicies
from offloaderd.policy.records import Selection, TopicPolicy
from offloaderd.policy.rules import ANYWHERE, Surroundings, by_itself, checked, sound
from offloaderd.policy.store import read, selections, topic_policies, topics_with_nodes
from offloaderd.protocol.conversion import to_position
from offloaderd.protocol.v1 import admin_pb2 as pb
from offloaderd.protocol.v1 import policy_pb2
from offloaderd.segment.states import SegmentState, state_of
from offloaderd.tables.reporter import Summary
from offloaderd.topic.status import TopicStatus
from offloaderd.upkeep.grants import records as grant_records


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSnapshot:
    """State of the daemon at one moment. `state` is starting, serving or draining."""

    daemon_id: str
    version: str
    state: str
    started_ms: int
    dependencies: tuple[Dependency, ...] = ()
    memory_used_bytes: int = 0
    memory_budget_bytes: int = 0


COUNTED_TOPICS_MAX = 1000
"""Largest list of topics in which ledgers and entries are counted: each topic costs the source several requests."""

METADATA = "metadata"
"""Name of the dependency that the metadata store is."""


@dataclass(eq=False, kw_only=True)
class AdminService(ManualCalls):
    """Topics, policies, manual offload, segments and status.

    `places` are the buckets and prefixes that the daemon stores in. `lost` returns the alarm that the metadata has lost
    what the bucket holds, empty without a sign of it. `tables` returns declared tables, and how many more there are.
    """

    snapshot: Callable[[], DaemonSnapshot]
    places: tuple[tuple[str, str], ...] = ()
    lost: Callable[[], Awaitable[str]] | None = None
    tables: Callable[[], Awaitable[tuple[Sequence[Summary], int]]] | None = None

    async def ListTopics(self, request: pb.ListTopicsRequest, context: Context) -> pb.ListTopicsResponse:
        """Return the topics that have a policy or that the ledger source has, in name order."""
        prefix = checked_prefix(request.prefix)
        tenant, namespace = (*prefix, None, None)[:2]
        failure = await metadata_error(self.metadata)
        if failure:
            rows = [
                pb.TopicSummary(topic=str(one.topic), enabled=True, owner=one.owner)
                for one in self.engine.statuses()
                if (one.topic.tenant, one.topic.namespace)[: len(prefix)] == prefix
            ]
            shown, token = page(request, sorted(rows, key=lambda one: one.topic), lambda one: one.topic)
            return pb.ListTopicsResponse(topics=shown, metadata_error=failure, next_page_token=token)
        known: set[TopicName] = set()
        if self.source is not None:
            known.update(await self.source.topics(tenant=tenant, namespace=namespace))
        names = known.union(await topics_with_nodes(self.metadata))
        within = [one for one in names if (one.tenant, one.namespace)[: len(prefix)] == prefix]
        wanted, token = page(request, sorted(within, key=str), str)
        policies = await read(self.metadata, wanted)
        topics = [one for one in wanted if one in policies or one in known]

        async def summary(topic: TopicName) -> pb.TopicSummary:
            found = policies.get(topic)
            policy = found if isinstance(found, TopicPolicy) else TopicPolicy(enabled=False)
            found_owner = await self.engine.owner_of(topic) if policy.active else None
            owner = found_owner.daemon_id if found_owner is not None else ""
            row = pb.TopicSummary(
                topic=str(topic),
                enabled=policy.enabled,
                owner=owner,
                selected_by=policy.selected_by if policy.enabled else "",
                partitioned=policy.partitioned,
                placement=self.engine.placed(topic, owner) if policy.active else "",
                paused_ms=policy.paused.since_ms if policy.paused is not None else 0,
            )
            if len(within) <= COUNTED_TOPICS_MAX:
                row.ledgers, row.entries = await self._confirmed(topic) if topic in known else (0, 0)
            return row

        return pb.ListTopicsResponse(topics=await each(topics, summary), next_page_token=token)

    async def ListSelections(self, request: pb.ListSelectionsRequest, context: Context) -> pb.ListSelectionsResponse:
        """Return the selections by pattern, each with the number of topics that it has enabled."""
        failure = await metadata_error(self.metadata)
        if failure:
            raise Transient(f"the metadata store does not answer: {failure}", hint="it alone has the patterns")
        found = await selections(self.metadata)
        counts: Counter[str] = Counter()
        if found:
            policies = (await topic_policies(self.metadata)).values()
            counts.update(one.selected_by for one in policies if isinstance(one, TopicPolicy) and one.enabled)
        patterns, token = page(request, sorted(found), str)
        rows = [selection(pattern, found[pattern], counts[pattern]) for pattern in patterns]
        return pb.ListSelectionsResponse(selections=rows, next_page_token=token)

    async def EnableTopic(self, request: pb.EnableTopicRequest, context: Context) -> pb.EnableTopicResponse:
        """Enable a topic or all that a pattern matches, now and later, or change the policy of what is enabled."""
        pattern = TopicPattern.parse(request.topic)
        policy = _checked_policy(request, Surroundings(places=self.places, has_source=self.source is not None))
        changes = await self.engine.select(pattern, policy, dry_run=request.dry_run)
        return filled(pb.EnableTopicResponse, pattern=pattern.text, topics=changes)

    async def DisableTopic(self, request: pb.DisableTopicRequest, context: Context) -> pb.DisableTopicResponse:
        """Complete the open segments and stop offloading; offloaded entries stay readable."""
        pattern = TopicPattern.named(request.topic)  # one that is not taken any more can be taken back
        changes = await self.engine.deselect(pattern, dry_run=request.dry_run)
        return filled(pb.DisableTopicResponse, pattern=pattern.text, topics=changes)

    async def _confirmed(self, topic: TopicName) -> tuple[int, int]:
        """Count ledgers and confirmed entries; a topic that vanished meanwhile has none."""
        if self.source is None:
            return 0, 0
        try:
            ledgers = await self.source.ledgers(topic)
            entries = sum(ledger.entries for ledger in ledgers if ledger.closed)
            if ledgers and not ledgers[-1].closed:
                entries += (await self.source.confirmed(topic, ledgers[-1].ledger_id)).last_entry_id + 1
        except NotFound:
            return 0, 0
        return len(ledgers), entries

    async def ListSegments(self, request: pb.ListSegmentsRequest, context: Context) -> AsyncIterator[pb.Segment]:
        """Yield the committed segments in order, then the open one."""
        topic = TopicName.parse(request.topic)
        failure = await metadata_error(self.metadata)
        if failure:
            known, offloader = self.engine.known(topic), self.engine.find(topic)
            if known is None:
                raise away(failure)
            stored, attempt = known, offloader.attempt if offloader is not None else None
        else:
            stored, attempt = await self.engine.topic_map(topic), await self._attempt(topic)
        if not stored.segments and attempt is None:
            await self._known(topic)
        for segment in stored.segments:
            yield committed_segment(segment)
        if attempt is not None and (stored.offloaded is None or attempt.begin > stored.offloaded):
            offloader = self.engine.find(topic)
            status = offloader.status() if offloader is not None else None
            yield open_segment(attempt, status)

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusResponse:
        """Return the daemon's state with one topic, or all topics that it owns or waits for.

        While the metadata store does not answer, only what this daemon has in memory; the same of topics that it waits
        for beyond WAITING_READ, as a daemon that was just started waits for thousands.
        """
        failure = await metadata_error(self.metadata)
        if request.topic:
            topics = [await self.topic_status(TopicName.parse(request.topic), failure)]
        else:
            topics = await self._statuses(failure)
        found = self.response(topics, failure)
        if not (failure or topics) and self.lost is not None and (alarm := await self.lost()):
            found.alarms.append(alarm)
        if request.tables and not request.topic and self.tables is not None:
            found.tables.CopyFrom(await _declared(self.tables, failure))
        return found

    async def _statuses(self, failure: str) -> list[pb.TopicStatus]:
        """Return the status of every topic that this daemon owns or waits for."""
        found: list[pb.TopicStatus] = []
        waiting = 0
        async for statuses in in_turns(self.engine.each_status()):
            failures: list[str] = []
            for one in statuses:
                waiting += not one.epoch
                failures.append(NOT_READ if not one.epoch and waiting > WAITING_READ else failure)
            found += await each(list(zip(statuses, failures, strict=True)), lambda one: self.completed(*one))
        return found

    def response(self, topics: Iterable[pb.TopicStatus] = (), failure: str = "") -> pb.StatusResponse:
        """Return the daemon's state with these topics; `failure` is that of the metadata store."""
        now = self.snapshot()
        overruled = [one for one in now.dependencies if failure and one.up and one.name == METADATA]
        dependencies = [
            replace(one, up=False, message=failure) if one in overruled else one for one in now.dependencies
        ]
        return filled(
            pb.StatusResponse,
            now,
            dependencies=dependencies,
            topics=topics,
            alarms=self.engine.alarms(),
            bucket=None,
            tables=None,
        )

    async def topic_status(self, topic: TopicName, failure: str = "") -> pb.TopicStatus:
        """Return the status of any topic of the cluster. Raises NotFound for an unknown one, Transient."""
        status = self.engine.status(topic)
        if status is not None:
            return await self.completed(status, failure)
        if failure:
            raise away(failure)
        stored = await self.engine.topic_map(topic)
        if not stored.segments:
            await self._known(topic)
        owner = await self.engine.owner_of(topic)
        return pb.TopicStatus(
            topic=str(topic),
            state="stopped" if owner is None else "not-owner",
            owner="" if owner is None else owner.daemon_id,
            epoch=0 if owner is None else owner.epoch,
            placement="" if owner is None else self.engine.placed(topic, owner.daemon_id),
            offloaded=to_position(stored.offloaded),
            segments_committed=len(stored.segments),
            losses=map(lost_range, stored.losses),
            damaged_ledgers=(await grant_records.damaged(self.metadata, topic))[:DAMAGED_MAX],
            unnamed=map(_unnamed, self.engine.unnamed_places(stored)),
        )

    async def completed(self, status: TopicStatus, failure: str = "") -> pb.TopicStatus:
        """Add the owner, and what it has committed, to the engine's status of a topic.

        With a `failure` of the metadata store the engine's status stays as it is.
        """
        message = topic_status(status)
        if status.epoch:
            message.owner = status.owner or self.snapshot().daemon_id
            message.placement = self.engine.placed(status.topic, message.owner)
            return message
        if failure:
            return message
        message.ClearField("confirmed")  # this daemon's value is from its time as owner
        owner = await self.engine.owner_of(status.topic)
        stored = await catalog.load(self.metadata, status.topic)  # the engine would wake the topic
        message.segments_committed = len(stored.segments)
        message.damaged_ledgers[:] = (await grant_records.damaged(self.metadata, status.topic))[:DAMAGED_MAX]
        message.losses.extend(map(lost_range, stored.losses))
        message.unnamed.extend(map(_unnamed, self.engine.unnamed_places(stored)))
        if (offloaded := to_position(stored.offloaded)) is not None:
            message.offloaded.CopyFrom(offloaded)
        message.placement = self.engine.placed(status.topic, "" if owner is None else owner.daemon_id)
        if owner is not None:
            message.owner, message.epoch = owner.daemon_id, owner.epoch
            if status.state == "claiming":
                message.state = "not-owner"
        return message

    async def _attempt(self, topic: TopicName) -> Attempt | None:
        """Return the record of the open segment: the owner's own, else the stored one."""
        offloader = self.engine.find(topic)
        if offloader is not None:
            return offloader.attempt
        return await nodes.record(self.metadata, paths.attempt(topic), attempt_record.decode)


WAITING_READ = 200
"""Topics without an owner here, of a list, whose owner and map are read: some twelve requests each."""
NOT_READ = "not asked"
DAMAGED_MAX = 100
"""Damaged ledgers of one topic in a status; `offloadctl ledgers list` shows all."""


def checked_prefix(text: str) -> tuple[str, ...]:
    """Parse `tenant` or `tenant/namespace` (empty: everything); raises InvalidInput."""
    parts = tuple(text.removesuffix("/").split("/")) if text else ()
    if len(parts) > 2 or not all(parts):
        raise InvalidInput(f"malformed prefix {text!r}", hint="write TENANT or TENANT/NAMESPACE")
    return parts


def _checked_policy(request: pb.EnableTopicRequest, place: Surroundings = ANYWHERE) -> TopicPolicy:
    """Parse the policy of an EnableTopic request; raises InvalidInput with all mistakes in it or at its place."""
    given = {field.name: value for field, value in request.ListFields() if field.name in NAMES}
    policies, flaws = sound({**given, **given_policies(request.policies)})
    checked(policies, flaws, by_itself(policies), place)
    return replace(TopicPolicy(enabled=True), **policies.set_values())


def selection(pattern: str, found: Selection | CorruptData, topics: int) -> pb.Selection:
    """Return a selection with the number of topics that it has enabled; of a damaged one only the damage."""
    if isinstance(found, CorruptData):
        return pb.Selection(pattern=pattern, topics=topics, damage=str(found))
    return filled(
        pb.Selection,
        found.policy,
        pattern=pattern,
        topics=topics,
        created_ms=found.created_ms,
        policies=policies_message(found.policy),
        damage=found.refused,
    )


async def _declared(tables: Callable[[], Awaitable[tuple[Sequence[Summary], int]]], failure: str) -> pb.DeclaredTables:
    """Return the declared tables, or why they are unknown; `failure` is that of the metadata store."""
    if failure:
        return pb.DeclaredTables(failure=failure)
    try:
        found, more = await tables()
    except OffloaderError as error:
        return pb.DeclaredTables(failure=str(error))
    return filled(pb.DeclaredTables, declarations=found, not_shown=more, failure="")


def committed_segment(segment: CommittedSegment) -> pb.Segment:
    """Return a committed segment as a message."""
    return filled(
        pb.Segment,
        segment,
        status="Offloaded",
        data_key=segment.keys.data,
        writer=segment.driver,
        state=SegmentState.COMMITTED,
    )


def open_segment(attempt: Attempt, status: TopicStatus | None) -> pb.Segment:
    """Return the open segment; only the daemon that writes it knows entries and bytes."""
    if status is not None and status.open_segment_id != str(attempt.segment_id):
        status = None
    return filled(
        pb.Segment,
        attempt,
        end=None,
        entries=status.open_segment_entries if status is not None else 0,
        payload_bytes=status.open_segment_bytes if status is not None else 0,
        object_bytes=None,
        offloaded_ms=None,
        data_key=attempt.keys.data,
        writer=attempt.driver,
        state=state_of(attempt),
    )


def topic_status(status: TopicStatus) -> pb.TopicStatus:
    """Return a topic's status as a message."""
    return filled(
        pb.TopicStatus,
        status,
        placement=None,
        lag_unknown=status.lag_entries is None,
        lag_age_unknown=status.lag_seconds is None,
        losses=map(lost_range, status.losses),
        damaged_ledgers=status.damaged_ledgers[:DAMAGED_MAX],
        gaps=(),
    )


def lost_range(loss: Loss) -> pb.LostRange:
    """Return a loss as a message."""
    return filled(pb.LostRange, loss, after=loss.after if loss.after.ledger_id >= 0 else None)


def _unnamed(place: UnnamedPlace) -> pb.UnnamedPlace:
    return filled(pb.UnnamedPlace, place)


def given_policies(message: policy_pb2.OffloadPolicies) -> dict[str, object]:
    """Return the values that are set, by name."""
    return {field.name: value for field, value in message.ListFields()}


def policies_message(policies: OffloadPolicies) -> policy_pb2.OffloadPolicies:
    """Return a policy's values as a message."""
    return policy_pb2.OffloadPolicies(**policies.set_values())


def origins(effective: Effective) -> list[policy_pb2.PolicyOrigin]:
    """Return the level of each value that is set."""
    said = effective.values.set_values()
    levels = {name: effective.levels[name] for name in NAMES if name in said}
    return [policy_pb2.PolicyOrigin(field=name, origin=level.origin, name=level.name) for name, level in levels.items()]
