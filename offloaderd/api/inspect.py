"""InspectService: explanation of an entry, and verification of a topic's segments."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from offloaderd.api.calls import Context, metadata_error, needed
from offloaderd.core.clock import Clock
from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names.managed_ledgers import system_reason
from offloaderd.fleet.engine import Engine
from offloaderd.format.parsing import filled
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.verified import SegmentVerified
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.protocol.conversion import from_position, to_position
from offloaderd.protocol.v1 import inspect_pb2 as pb
from offloaderd.protocol.v1 import inspect_pb2_grpc
from offloaderd.read.layout import Holder, HolderKind, Scale, holder, holders
from offloaderd.read.plan import TopicView
from offloaderd.read.reader import TopicReader
from offloaderd.tables import store as tables
from offloaderd.tables.declaration import Declaration, table_of
from offloaderd.upkeep.explain import Explainer, Held, Place
from offloaderd.upkeep.flaws import Level
from offloaderd.upkeep.verify.cluster import Between, SegmentReport, TopicVerifier

SOURCE_S = 4.0
"""How long the ledger source may take for a topic; there are two requests."""
EXPLAIN_S = 24.0
"""How long an explanation may take in all: less than callers wait, so that they learn what did not answer."""


@dataclass(eq=False)
class InspectService(inspect_pb2_grpc.InspectServiceServicer):
    """Explains and verifies. Changes nothing.

    `damaged` is called with damaged segments; `known` raises TopicNotFound for an unknown topic. `layouts` shows where
    the entries of a topic are.
    """

    explainer: Explainer
    verifier: TopicVerifier
    engine: Engine
    metadata: MetadataStore
    damaged: Callable[[TopicName, CommittedSegment, str], None] = lambda *_: None
    known: Callable[[TopicName], Awaitable[object]] | None = None
    layouts: Callable[[TopicName], Awaitable[pb.LayoutResponse]] | None = None

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        """Explain a position. Raises NotFound for an unknown topic, InvalidInput, and as the stores.

        Transient at once while the metadata store does not answer.
        """
        if not request.HasField("position"):
            raise InvalidInput("no position to explain", hint="write LEDGER:ENTRY")
        topic = TopicName.parse(request.topic)
        if failure := await metadata_error(self.metadata):
            raise needed(failure)
        try:
            async with asyncio.timeout(EXPLAIN_S):
                found = await self.explainer.explain(topic, from_position(request.position))
        except TimeoutError:
            raise needed(f"no answer within {EXPLAIN_S:g} s") from None
        if found.place is not None and found.place.flaw is not None and found.place.flaw.is_problem:
            self.damaged(topic, found.place.segment, str(found.place.flaw))
        owner = await self.engine.owner_of(topic)
        return filled(
            pb.ExplainResponse,
            found,
            in_buffer=found.held.buffer,
            in_source=found.held.source,
            in_objects=found.place is not None,
            source_trouble=found.held.why,
            place=_place(found.place, found.verified) if found.place is not None else None,
            owner=owner.daemon_id if owner is not None else "",
            owner_address=owner.address if owner is not None else "",
            epoch=owner.epoch if owner is not None else 0,
            ledger_entries=found.ledger_end.entries if found.ledger_end is not None else None,
        )

    async def Layout(self, request: pb.LayoutRequest, context: Context) -> pb.LayoutResponse:
        """Show where the entries of a topic are. Raises NotFound for an unknown topic, and as the stores."""
        assert self.layouts is not None  # noqa: S101 - the daemon always gives it
        return await self.layouts(TopicName.parse(request.topic))

    async def Verify(self, request: pb.VerifyRequest, context: Context) -> AsyncIterator[pb.VerifyEvent]:
        """Yield a report of each segment, then the flaws between them.

        Raises TopicNotFound, InvalidInput, and as the stores; Transient at once while the metadata store does not
        answer.
        """
        topic = TopicName.parse(request.topic)
        try:
            level = Level(request.level or Level.FULL)
        except ValueError:
            raise InvalidInput(f"unknown level {request.level!r}", hint=f"one of {', '.join(Level)}") from None
        if failure := await metadata_error(self.metadata):
            raise needed(failure)
        if self.known is not None:
            await self.known(topic)
        async with aclosing(self.verifier.run(topic, level)) as found:
            async for one in found:
                yield _event_message(one)


async def held(reader: TopicReader, topic: TopicName, position: Position) -> Held:
    """Return the tiers beside the bucket that hold an entry. Raises NotFound for an unknown topic, Transient."""
    view = await _view(reader, topic, None)
    buffered = reader.hot.read(topic, position, position, 1) is not None
    ledger = view.ledger(position.ledger_id)
    holds = ledger is not None and position.entry_id <= ledger.last_entry_id
    return Held(
        buffer=buffered,
        source=None if view.source_away else holds,
        in_source=ledger is not None,
        ended=ledger.last_entry_id + 1 if ledger is not None and ledger.closed else None,
        newest=view.newest(),
        why=view.source_away,
    )


async def _view(
    reader: TopicReader, topic: TopicName, topic_map_of: Callable[[TopicName], Awaitable[TopicMap]] | None
) -> TopicView:
    """Return the view of a topic, without its source if that does not answer and entries are offloaded.

    `topic_map_of` as for the reader. Raises NotFound for an unknown topic, Transient.
    """
    view = await reader.view(topic, Position(0, 0), source_s=SOURCE_S, topic_map_of=topic_map_of)
    if view.is_empty() and not view.source_away:
        await reader.priority(topic)
    return view


@dataclass(frozen=True, slots=True)
class Layouts:
    """Shows where the entries of topics are: in this daemon's buffer, in a source of this kind, in these buckets."""

    reader: TopicReader
    engine: Engine
    metadata: MetadataStore
    clock: Clock
    daemon_id: str
    source_kind: str
    buckets: frozenset[str]

    async def of(self, topic: TopicName) -> pb.LayoutResponse:
        """Return the layout of a topic, which does not wake it, as a page shows it again and again.

        Raises NotFound for an unknown topic, Transient, CorruptData.
        """
        if failure := await metadata_error(self.metadata):
            raise needed(failure)
        view = await _view(self.reader, topic, self.engine.present_map)
        scale = Scale(view)
        found = [await self._buffer(topic, view, scale)]
        found += holders(view, scale, source=self.source_kind, buckets=self.buckets)
        found += [one async for one in self._tables(topic, scale)]
        return filled(
            pb.LayoutResponse,
            first=scale.first,
            last=view.newest(),
            entries=scale.entries,
            deleted=view.floor,
            holders=found,
            now_ms=self.clock.wall_ms(),
        )

    async def _buffer(self, topic: TopicName, view: TopicView, scale: Scale) -> Holder:
        owner = await self.engine.owner_of(topic)
        name = owner.daemon_id if owner is not None else ""
        if owner is not None and name != self.daemon_id:
            return Holder(kind=HolderKind.BUFFER, name=name, problem=f"only its owner knows, at {owner.address}")
        return holder(HolderKind.BUFFER, name, [scale.extent(*view.hot)] if view.hot is not None else [])

    async def _tables(self, topic: TopicName, scale: Scale) -> AsyncIterator[Holder]:
        """Yield the declared tables of a topic, as the application that writes them has last said."""
        for name, declared in (await tables.load(self.metadata)).items():
            if not isinstance(declared, Declaration):
                yield Holder(kind=HolderKind.TABLE, name=name, problem=str(declared))
                continue
            if not declared.pattern.matches(topic):
                continue
            try:
                states = await tables.states(self.metadata, name)
            except CorruptData as error:
                yield Holder(kind=HolderKind.TABLE, name=name, problem=str(error))
                continue
            found = [one for one in states.by(self.clock.wall_ms()) if one.topic == str(table_of(topic))]
            for one in found:
                at = one.positions.get(topic.local)
                yield Holder(
                    kind=HolderKind.TABLE,
                    name=f"{name}/{one.table}",
                    extents=scale.through(Position.parse(at)) if at else (),
                    problem=one.error or one.waits or ("" if at else "its application has not said how far it is"),
                    lag_s=one.lag_s,
                )
            if not found and (declared.pattern.topic is not None or system_reason(topic) is None):
                problem = "no application has written it yet: offloaderd spark tables run"
                yield Holder(kind=HolderKind.TABLE, name=name, problem=problem)


def _place(place: Place, verified: SegmentVerified | None) -> pb.ExplainResponse.Place:
    segment, block = place.segment, place.block
    message = pb.ExplainResponse.Place(
        segment_id=str(segment.segment_id),
        begin=to_position(segment.begin),
        end=to_position(segment.end),
        offloaded_ms=segment.offloaded_ms,
        bucket=segment.bucket,
        data_key=place.data_key,
        data_bytes=segment.object_bytes,
        entry_offset=place.entry_offset,
        payload_offset=None if place.entry_offset is None else place.entry_offset + ENTRY_OVERHEAD_BYTES,
        payload_bytes=place.payload_bytes,
        flaw=filled(pb.Flaw, place.flaw) if place.flaw is not None else None,
    )
    if block is not None:
        message.block_number, message.block_count = place.block_number, place.block_count
        message.block_offset, message.block_bytes, message.block_crc32c = block.offset, block.length, block.crc32c
        message.block_first.ledger_id = message.block_last.ledger_id = block.ledger_id
        message.block_first.entry_id, message.block_last.entry_id = block.first_entry_id, block.last_entry_id
    if verified is not None:
        message.verified_ms, message.verified_level = verified.verified_ms, verified.level
        message.verified_flaws, message.verified_flaw = verified.flaws, verified.flaw
    return message


def _event_message(one: SegmentReport | Between) -> pb.VerifyEvent:
    if not isinstance(one, SegmentReport):
        return pb.VerifyEvent(between=filled(pb.VerifyEvent.Between, one))
    segment = filled(
        pb.VerifyEvent.Segment,
        one,
        segment_id=one.segment.segment_id,
        begin=one.segment.begin,
        end=one.segment.end,
        data_bytes=one.segment.object_bytes,
    )
    return pb.VerifyEvent(segment=segment)
