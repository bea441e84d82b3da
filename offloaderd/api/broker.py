"""BrokerService: a topic ledger by ledger, for a broker's LedgerOffloader (deploy/pulsar-offloader).

The broker decides what is offloaded, when its own copy is deleted, and which copy is read. A topic without a policy is
enabled when its broker first asks for one of its ledgers. A ledger in Pulsar's list is never deleted: a broker cleans
up after each failed attempt by the same call, without a reason. A broker asks for ledgers that its list calls
offloaded, and may skip for good what is deleted (EntriesDeleted). So only recorded deletions are reported as such; for
anything else the broker gets an error and tries again.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from math import inf
from urllib.parse import unquote
from uuid import UUID
from weakref import WeakKeyDictionary

import structlog

from offloaderd.api.calls import Context
from offloaderd.api.gate import account_of_caller, check_source, count_planned
from offloaderd.api.manual_offload import HEARTBEAT_S, changed_or_heartbeat
from offloaderd.api.read import BATCH_BYTES_MAX, ReadService
from offloaderd.api.retention import checked_ledger
from offloaderd.core.entries import Entries
from offloaderd.core.errors import (
    BucketMissing,
    Conflict,
    CorruptData,
    EntriesDeleted,
    EntriesMissing,
    IdentityRefused,
    InvalidInput,
    MapUnknown,
    NotFound,
    TopicUnknown,
    Transient,
    Unsound,
)
from offloaderd.core.limits import Bounded
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names.managed_ledgers import compacted_of
from offloaderd.core.names.patterns import of_topic
from offloaderd.core.read_options import ReadPriority, Tier
from offloaderd.fleet.engine import Engine
from offloaderd.format.parsing import filled
from offloaderd.ledgers.port import LedgerRegister, ShadowTopics
from offloaderd.metadata import paths
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.identity import deletion_refused
from offloaderd.metadata.topic_map.conversion import holders_of
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects import keys
from offloaderd.objects.port import SignedUrls, present
from offloaderd.policy import store as policies
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.policy.records import TopicPolicy
from offloaderd.protocol.conversion import encoded_read_response, to_position
from offloaderd.protocol.errors import reason_of
from offloaderd.protocol.v1 import broker_pb2 as pb
from offloaderd.protocol.v1 import broker_pb2_grpc
from offloaderd.read.plan import Why
from offloaderd.read.reader import TopicReader
from offloaderd.topic.offloader import TopicOffloader
from offloaderd.upkeep.grants.broker_request import (
    ClosedLedger,
    Copies,
    Extent,
    extent_of,
    is_gone,
    is_held,
    is_whole,
    needs_push,
    request_commit,
)
from offloaderd.upkeep.grants.copy_check import awaited_copy
from offloaderd.upkeep.retention import Retention

log = structlog.get_logger(__name__)

CHANGES_S = 0.05
"""First pause before the source is read again: a broker asks at the moment of the close, before the source knows of it.
Later pauses are longer."""

REPEAT_S = 60.0
"""When the request to an owner is repeated."""

URL_S = 300
"""How long a broker can fetch what it was told; it asks for more long before, unless its reader pauses."""

LOST = (
    "is this daemon's metadata this cluster's, and whole? `offloaderd rebuild --config FILE` shows what the bucket has"
)
"""Hint for a ledger that the map lacks: a broker asks only for what was covered before, so the map is older, another
cluster's, or not rebuilt yet."""

STATES = pb.EnsureState
Report = pb.EnsureLedgerResponse


@dataclass(eq=False)
class BrokerService(broker_pb2_grpc.BrokerServiceServicer):
    """Answers brokers. `register` is Pulsar's list; without it nothing is deleted at a broker's request.

    `keep` is called with ledgers whose copy is unsound.
    """

    engine: Engine
    reader: TopicReader
    reads: ReadService
    retention: Retention
    register: LedgerRegister | None
    keep: Callable[[TopicName, Sequence[int], str], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        self._shadows = ShadowSources(self.register)
        self._copies = Copies(self.engine.context)
        self._clock = self.engine.context.upload_context.clock
        self._requested: WeakKeyDictionary[TopicOffloader, tuple[Position, float]] = WeakKeyDictionary()
        self.topics = BrokerTopics(self.engine, self.register)

    async def EnsureLedger(self, request: pb.EnsureLedgerRequest, context: Context) -> AsyncIterator[Report]:
        """Report until the ledger is covered, or the broker has to do something.

        With a policy that demands the mirror, a ledger is covered once all its segments have their copy there.

        Raises InvalidInput, TopicUnknown (Pulsar's list has no such topic or ledger), Conflict (the topic was disabled,
        is one too many for its namespace, or its method takes nothing; a compacted ledger where no list can be read),
        Unsound (what the tier has is another ledger than BookKeeper's), CorruptData, Transient.
        """
        topic, wanted = TopicName.parse(request.topic), closed_ledger(request)
        if self.register is None and compacted_of(topic) is not None:
            raise Conflict(
                f"this daemon cannot tell which compacted ledger of {compacted_of(topic)} is still needed",
                hint='it reads that from Pulsar\'s metadata: set ledgers.kind = "bookkeeper"',
            )
        pause_s, left_s = CHANGES_S, request.wait_ms / 1000 if request.wait_ms else inf
        while True:
            stored = await self.engine.topic_map(topic)
            policy, awaits = (await self.engine.book.of(topic)).values, ""
            if whole := is_whole(stored, wanted.ledger_id):
                awaits = awaited_copy(holders_of(stored, wanted.ledger_id), policy)
            if whole and not awaits:
                count = await self._sound(stored, wanted, policy)
                yield Report(state=STATES.ENSURE_STATE_COVERED, offloaded=to_position(stored.offloaded), segments=count)
                return
            report = Report(state=STATES.ENSURE_STATE_WAITING, offloaded=to_position(stored.offloaded), message=awaits)
            offloader = await self._owned(topic, wanted, report)
            changed = self.engine.changed if offloader is None else offloader.changed
            if offloader is not None and not awaits:
                if needs_push(offloader, wanted):
                    report.state = STATES.ENSURE_STATE_PUSH
                else:
                    report.message = await self._request_unless_recent(offloader, wanted, unquote(context.peer()))
            yield report
            if report.state != STATES.ENSURE_STATE_WAITING or left_s <= 0:
                return
            began = self._clock.monotonic()
            await changed_or_heartbeat(changed, min(pause_s, left_s))
            left_s -= self._clock.monotonic() - began
            pause_s = min(2 * pause_s, HEARTBEAT_S)

    async def _request_unless_recent(self, offloader: TopicOffloader, wanted: ClosedLedger, by: str) -> str:
        """Request a ledger from its owner, unless it was requested a moment ago; return what prevents it. Raises as
        `request_commit`.

        A broker repeats its call, and each request is recorded. A ledger whose entries are all offloaded lacks only its
        end: the earlier request came too early, during a commit, and is repeated.
        """
        requested, at = self._requested.get(offloader, (None, 0.0))
        waits = offloader.offloaded is None or offloader.offloaded < wanted.last
        if requested is not None and wanted.last <= requested and waits and self._clock.monotonic() < at + REPEAT_S:
            return offloader.status().stalled_reason
        hindrance = await request_commit(offloader, wanted, by)
        if not hindrance:
            self._requested[offloader] = wanted.last, self._clock.monotonic()
        return hindrance

    async def _sound(self, stored: TopicMap, wanted: ClosedLedger, policy: OffloadPolicies) -> int:
        """Return how many segments hold a ledger; an unsound copy loses its grant. Raises as `verified`."""
        try:
            return await self._copies.verified(stored, wanted, policy)
        except (CorruptData, Unsound) as error:
            if self.keep is not None:
                reason = f"its copy was found damaged when a broker asked: {error.message}"
                await self.keep(stored.topic, [wanted.ledger_id], reason)
            raise

    async def OpenLedger(self, request: pb.OpenLedgerRequest, context: Context) -> pb.OpenLedgerResponse:
        """Return the last entry and the length of a ledger.

        Raises EntriesDeleted, MapUnknown, TopicUnknown, EntriesMissing, InvalidInput, InvalidConfig, CorruptData,
        Transient.
        """
        ledger = await self._own(request.ledger)
        topic, ledger_id, _ = named(ledger)
        with self._recorded_deletions_only(topic, ledger_id):
            found = await self._found(ledger)
        if isinstance(found, CommittedSegment):
            part = found.slices[0]
            return pb.OpenLedgerResponse(last_entry_id=part.last_entry_id, length_bytes=part.payload_bytes)
        return pb.OpenLedgerResponse(last_entry_id=found.entries - 1, length_bytes=found.length_bytes)

    async def ReadLedger(  # type: ignore[override] # its answers are serialized already
        self, request: pb.ReadLedgerRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Stream entries of an offloaded ledger. Raises as ReadService.Read does, and as OpenLedger."""
        ledger = await self._own(request.ledger)
        topic, ledger_id, _ = named(ledger)
        if request.batch_bytes > BATCH_BYTES_MAX:
            raise InvalidInput(f"batch_bytes of {request.batch_bytes} is too large", hint=f"at most {BATCH_BYTES_MAX}")
        first = Position(ledger_id, request.first_entry_id).checked()
        last = Position(ledger_id, request.last_entry_id).checked()
        with self.reads.counted(), self._recorded_deletions_only(topic, ledger_id):
            theirs = await self._found(ledger, first)
            if isinstance(theirs, CommittedSegment):
                if not first <= last <= theirs.end:
                    raise InvalidInput(f"{first} to {last} is no range of a ledger that ends with {theirs.end}")
                async with aclosing(self._of_broker(topic, theirs, first, last, request)) as found:
                    async for entries in found:
                        yield encoded_read_response(entries, Tier.OBJECTS)
                return
            reading = self.reader.read(
                topic,
                first=first,
                last=last,
                priority=ReadPriority.TIERED_STORAGE_FIRST,
                onward=last.entry_id == theirs.entries - 1,  # a broker goes on with the next ledger, by another call
                batch_bytes=request.batch_bytes,
                framed=request.framed,
            )
            async with aclosing(reading) as tiers:
                async for batch, tier in tiers:
                    yield encoded_read_response(batch, tier)

    async def PlanLedger(self, request: pb.ReadLedgerRequest, context: Context) -> pb.PlanLedgerResponse:
        """Return where the first entries of a range are stored. Raises as ReadLedger before its first answer."""
        ledger = await self._own(request.ledger)
        topic, ledger_id, _ = named(ledger)
        first = Position(ledger_id, request.first_entry_id).checked()
        last = Position(ledger_id, request.last_entry_id).checked()
        answer = pb.PlanLedgerResponse()
        with self.reads.counted():
            if (account := account_of_caller()) is not None:
                await account.may_read()  # first: the plan would get old meanwhile, and its URL
            found = await self._found(ledger, first)
            if isinstance(found, CommittedSegment):
                return answer
            runs, _ = await self.reader.plan(
                topic,
                runs_max=1,
                first=first,
                last=last,
                priority=ReadPriority.TIERED_STORAGE_FIRST,
                onward=last.entry_id == found.entries - 1,
            )
            if not runs or (segment := runs[0].segment) is None:
                return answer
            last = Position(ledger_id, runs[0].last_entry_id)
            bytes_max = min(request.batch_bytes or BATCH_BYTES_MAX, BATCH_BYTES_MAX)
            place, blocks = await self.reader.segments.stored(topic, segment, first, last, bytes_max)
            store = self.engine.context.upload_context.objects.at(place.bucket)
            if not blocks or not isinstance(store, SignedUrls):
                return answer
            url = await store.signed_url(place.keys.data, URL_S)
            if not url:
                return answer
            answer.url, answer.valid_ms = url, URL_S * 1000
            answer.blocks.extend(filled(pb.PlannedBlock, block, entries=block.entry_count) for block in blocks)
            count_planned(sum(block.length for block in blocks))
        entries = min(last.entry_id, blocks[-1].last_entry_id) - first.entry_id + 1
        self.reader.count(entries, sum(block.payload_bytes for block in blocks), Tier.OBJECTS, Why.CHOSEN)
        return answer

    async def _of_broker(
        self, topic: TopicName, theirs: CommittedSegment, first: Position, last: Position, request: pb.ReadLedgerRequest
    ) -> AsyncGenerator[Entries, None]:
        """Yield entries out of an object of Pulsar's own driver."""
        segments = self.reader.segments
        bytes_max = self.reader.options.answer_bytes(request.batch_bytes)
        reading = segments.read_framed(topic, theirs, first, last, bytes_max=bytes_max)
        async with aclosing(reading) as batches:
            async for batch in batches:
                yield batch if request.framed else batch.decoded()

    async def DeleteLedger(self, request: pb.DeleteLedgerRequest, context: Context) -> pb.DeleteLedgerResponse:
        """Delete a ledger that Pulsar's list does not have. Raises InvalidInput, InvalidConfig, Transient, Denied."""
        topic, ledger_id, object_id = named(request.ledger)
        if await self._listed(topic, ledger_id):
            log.info("ledger.delete_refused", topic=str(topic), ledger_id=ledger_id, object_id=str(object_id))
            return pb.DeleteLedgerResponse(outcome="kept")
        if request.ledger.bucket:
            return pb.DeleteLedgerResponse(outcome=await self._delete_theirs(request.ledger))
        stored = await self.engine.topic_map(topic)
        if ledger_id not in stored.contexts or ledger_id in stored.deleted:
            return pb.DeleteLedgerResponse(outcome="nothing")
        try:
            offloader = await self.engine.owned(topic)
        except Conflict:
            owner = await self.engine.owner_of(topic)
            if owner is None:
                raise Transient(f"{topic} is being handed over", hint="try again in a moment") from None
            return pb.DeleteLedgerResponse(outcome="elsewhere", owner_address=owner.address)
        await self.retention.mark(offloader, [ledger_id], dry_run=False)
        return pb.DeleteLedgerResponse(outcome="marked")

    async def _owned(self, topic: TopicName, wanted: ClosedLedger, report: Report) -> TopicOffloader | None:
        """Return the topic's offloader if this daemon owns it; else put the owner or the reason into the report."""
        try:
            return await self.engine.owned(topic)
        except Conflict:
            owner = await self.engine.owner_of(topic)
            if owner is not None:
                report.state, report.owner_address = STATES.ENSURE_STATE_ELSEWHERE, owner.address
        except NotFound:
            await self.topics.enable(topic, wanted.ledger_id)
            report.message = f"{topic} is being enabled"
        except Transient as error:
            report.message = str(error)
        return None

    async def _own(self, ledger: pb.OffloadedLedger) -> pb.OffloadedLedger:
        """Return a ledger under the topic that wrote it. Raises as `ShadowSources`."""
        topic, ledger_id, _ = named(ledger)
        source = await self._shadows.source_of(await self.engine.topic_map(topic), ledger_id)
        if source is None:
            return ledger
        bucket = ledger.bucket
        return pb.OffloadedLedger(topic=str(source), ledger_id=ledger_id, object_id=ledger.object_id, bucket=bucket)

    async def _found(self, ledger: pb.OffloadedLedger, first: Position | None = None) -> CommittedSegment | Extent:
        """Return a ledger in an object of Pulsar's own driver, or how far one reaches that our map has from `first` on.

        Raises EntriesDeleted, MapUnknown, TopicUnknown, NotFound.
        """
        topic, ledger_id, object_id = named(ledger)
        stored = await self.engine.topic_map(topic)
        held = extent_of(stored, ledger_id, object_id)
        if held is not None and (first is None or stored.floor is None or first > stored.floor):
            return held
        if ledger.bucket and held is None:
            return await self._copies.of_broker(topic, ledger_id, ledger.bucket, object_id)
        if held is not None or is_gone(stored, ledger_id):
            what = f"position {first}" if held is not None else f"ledger {ledger_id}"
            if why := await deletion_refused(self.engine.context.metadata, topic):
                raise MapUnknown(f"{what} of {topic} is on record as deleted, which is in doubt: {why}")
            hint = f"offloadctl ledgers list {topic}"
            raise EntriesDeleted(f"{what} of {topic} was deleted from the tier", hint=hint)
        raise await self._unknown(stored, ledger_id)

    async def _unknown(self, stored: TopicMap, ledger_id: int) -> MapUnknown:
        """Return the error for a ledger that the map does not have completely, without a recorded deletion."""
        topic = stored.topic
        if stored == TopicMap(topic) and not (await self.engine.book.of(topic)).known:
            return TopicUnknown(
                f"nothing is on record of {topic}, and a broker wants its ledger {ledger_id}", hint=LOST
            )
        has = "part" if ledger_id in stored.contexts else "nothing"
        return MapUnknown(
            f"the map of {topic} has {has} of ledger {ledger_id}, and not that it was deleted; a broker calls it "
            "offloaded",
            hint=LOST,
        )

    @contextmanager
    def _recorded_deletions_only(self, topic: TopicName, ledger_id: int) -> Iterator[None]:
        """Report a deletion to a broker only if it is recorded; count everything else as unknown.

        A recorded loss is no deletion: the map has the ledger, or had it a moment ago.
        """
        unknown: EntriesMissing | MapUnknown
        try:
            yield
            return
        except (EntriesDeleted, BucketMissing):
            raise
        except MapUnknown as error:
            unknown = error
        except NotFound as error:
            unknown = EntriesMissing(error.message, hint=error.hint)
        reason = reason_of(type(unknown)).lower()
        self.engine.context.upload_context.metrics.broker_unknown.labels(reason=reason).inc()
        log.error("ledger.unknown", topic=str(topic), ledger_id=ledger_id, reason=reason, error=str(unknown))
        raise unknown

    async def _listed(self, topic: TopicName, ledger_id: int) -> bool:
        """Whether Pulsar's list has a ledger, or cannot be read at all. Raises Transient."""
        if self.register is None:
            return True
        try:
            return ledger_id in await self.register.listed(topic)
        except NotFound:
            return False

    async def _delete_theirs(self, ledger: pb.OffloadedLedger) -> str:
        """Delete the objects of Pulsar's own driver. Raises Denied, Transient, IdentityRefused."""
        topic, ledger_id, object_id = named(ledger)
        found = await present(self._copies.checked_before_deletion(topic, ledger_id, ledger.bucket, object_id))
        if why := await deletion_refused(self.engine.context.metadata, topic):  # what is not there may be elsewhere
            raise IdentityRefused(f"nothing of {topic} is deleted for the time being: {why}")
        if found is None:
            return "nothing"
        where = keys.SegmentKeys("", object_id, ledger_id)
        await self.engine.context.upload_context.objects.at(found.bucket).delete([where.data, where.index])
        log.info("ledger.deleted", topic=str(topic), ledger_id=ledger_id, object_id=str(object_id), bucket=found.bucket)
        return "deleted"


def closed_ledger(request: pb.EnsureLedgerRequest) -> ClosedLedger:
    """Parse the requested ledger. Raises InvalidInput."""
    ledger_id = checked_ledger(request.ledger_id)
    return ClosedLedger(ledger_id, Position(ledger_id, request.last_entry_id).checked().entry_id, request.length_bytes)


def named(ledger: pb.OffloadedLedger) -> tuple[TopicName, int, UUID]:
    """Parse a ledger's topic, its id, and the broker's id of the attempt. Raises InvalidInput."""
    try:
        object_id = UUID(ledger.object_id)
    except ValueError:
        raise InvalidInput(f"{ledger.object_id!r} is no object's id", hint="write a UUID") from None
    return TopicName.parse(ledger.topic), checked_ledger(ledger.ledger_id), object_id


NAME_BYTES_MAX = 1024
"""Length of a managed ledger's name. It becomes a node's name and user metadata of objects: 2 KiB with S3."""


class BrokerTopics:
    """Enables topics without a policy. `register` is None when Pulsar's list cannot be read; the limits may change.

    The role `offload` is enough to enable a topic, so that is bounded: only topics of Pulsar's list, if that can be
    read, with the requested ledger; names of a length that brokers accept; a limit of topics in a namespace, of
    namespaces in a tenant, and of tenants.
    """

    def __init__(self, engine: Engine, register: LedgerRegister | None) -> None:
        self.namespace_topics_max, self.tenant_namespaces_max = 10_000, 1_000
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

    A broker reads ledgers of a shadow topic's source under the shadow's name (PIP-180). The shadow's list has these
    ledgers, but neither the driver's metadata nor the attempt's id name the source. So it is read from a property of
    the shadow's list. An id alone would open the ledger of any topic; here the caller needs the role for the source as
    well. Whether a topic is a shadow never changes, so the last answer counts while Pulsar's metadata cannot be read.
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
