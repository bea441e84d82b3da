"""Explanation of one position: which tiers hold it, in which object and bytes, when verified, and may its source delete
it.

The object is read, not only looked up: the block's checksum is compared and the entry found in it. A position without
an entry is explained too: deleted, lost, not written yet, or behind the end of its ledger.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.core.errors import BucketMissing, CorruptData, NotFound, Transient
from offloaderd.core.model import START, LedgerEnd, Position, TopicName
from offloaderd.format.manifest import BlockInfo
from offloaderd.format.verify import decode_verified_block
from offloaderd.metadata import paths
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.nodes import record
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import grant as grant_record
from offloaderd.metadata.records import verified as verified_record
from offloaderd.metadata.records.grant import Grant
from offloaderd.metadata.records.verified import SegmentVerified
from offloaderd.metadata.topic_map.conversion import holders_of
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.retrying import RetryingReader
from offloaderd.policy.policies import Effective
from offloaderd.read.reader import Maps
from offloaderd.upkeep.flaws import RESTORE, Flaw, Kind, corrupt, noted
from offloaderd.upkeep.grants.copy_check import awaited_copy
from offloaderd.upkeep.stored import Site
from offloaderd.upkeep.verify.segment import (
    Tables,
    Target,
    check_broker_objects,
    entries_of,
    find_broker_entry,
    load_manifest,
)

BUCKET_S = 8.0
"""How long the bucket may take. Callers wait for half a minute, so an answer without the object is better than none."""


class State(StrEnum):
    """States of a position."""

    OFFLOADED = "offloaded"
    NOT_OFFLOADED = "not-offloaded"
    DELETED = "deleted"
    LOST = "lost"
    MAYBE_LOST = "maybe-lost"
    NO_ENTRY = "no-entry"
    BEYOND = "beyond-the-end"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Tiers beside the bucket that hold an entry. `source` is None when the source did not answer, `why` has the
    reason.

    `ended`: number of entries of the ledger, if the source knows that it is closed. `in_source`: the source has the
    ledger. `newest`: the topic's newest entry in any tier.
    """

    buffer: bool
    source: bool | None
    in_source: bool
    ended: int | None
    newest: Position | None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Location of an entry in the bucket; of a damaged block the entry's own fields are None.

    `entry_offset` is that of its head of 12 bytes in the data object; the payload follows.
    """

    segment: CommittedSegment
    data_key: str
    block: BlockInfo | None = None
    block_number: int = 0
    block_count: int = 0
    entry_offset: int | None = None
    payload_bytes: int | None = None
    flaw: Flaw | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All facts about a position. `verified` is the last result of the scrub for the segment."""

    topic: TopicName
    position: Position
    state: State
    text: str
    what_to_do: str = ""
    held: Held
    place: Place | None = None
    verified: SegmentVerified | None = None
    ledger_end: LedgerEnd | None = None
    ledger_deleted_ms: int | None = None
    grant: Grant | None = None
    grant_waits: str = ""
    """Why the source may not delete the ledger yet: its policy demands copies in the mirror; empty if not for that."""


class Explainer:
    """Explains positions in all sites of a cluster."""

    def __init__(
        self,
        maps: Maps,
        held: Callable[[TopicName, Position], Awaitable[Held]],
        metadata: MetadataStore,
        reader: RetryingReader,
        sites: Sequence[Site],
        policies: Callable[[TopicName], Awaitable[Effective]] | None = None,
    ) -> None:
        """`held` returns the other tiers with an entry. It raises Transient, and NotFound if no tier has the topic.

        `policies` returns a topic's policy.
        """
        self._maps = maps
        self._held = held
        self._metadata = metadata
        self._reader = reader
        self._policies = policies
        self._cluster = sites[0].cluster
        self._buckets = {site.bucket for site in sites}

    async def explain(self, topic: TopicName, position: Position) -> Explanation:
        """Explain a position. Raises NotFound for an unknown topic, Denied, CorruptData for metadata.

        Raises Transient only if the metadata store does not answer; the place reports a bucket that does not.
        """
        held = await self._held(topic, position)  # before the map: entries only move from there to here
        topic_map = await self._maps.topic_map(topic)
        segment = topic_map.find(position)
        known = Explanation(
            topic=topic,
            position=position,
            state=State.OFFLOADED,
            text="",
            held=held,
            ledger_end=topic_map.ends.get(position.ledger_id),
            ledger_deleted_ms=topic_map.deleted.get(position.ledger_id),
            grant=await record(self._metadata, paths.grant(topic, position.ledger_id), grant_record.decode),
        )
        if segment is None:
            return without_segment(known, topic_map)
        place, text, advice = await self._of_places(topic, position, segment)
        found = await record(self._metadata, paths.verified(topic), verified_record.decode)
        verified = found.of([segment]).get(segment.segment_id) if found is not None else None
        waits = await self._awaited(known, topic_map)
        return replace(known, text=text, what_to_do=advice, place=place, verified=verified, grant_waits=waits)

    async def _of_places(
        self, topic: TopicName, position: Position, segment: CommittedSegment
    ) -> tuple[Place, str, str]:
        """Return the place that gives the entry, the segment's own if none does; what to say of it, and to do."""
        own = await self._within_reach(topic, position, segment)
        copy = segment.copy
        where = f"bucket {copy.bucket!r} under prefix {copy.prefix!r}" if copy is not None else ""
        if own.flaw is None:
            also = f"; a copy is in {where}" if copy is not None else ""
            return own, f"offloaded; its block was read and is as it was written{also}", ""
        said = f"offloaded, and not readable from the bucket now: {own.flaw}"
        there = await self._within_reach(topic, position, copy) if copy is not None else own
        if there.flaw is None:
            return (
                there,
                f"{said}; readers get it from the copy in {where}, which is as it was written",
                own.flaw.what_to_do,
            )
        if copy is not None:
            said += f"; nor is the copy in {where}: {there.flaw}"
        return own, said, own.flaw.what_to_do

    async def _awaited(self, known: Explanation, topic_map: TopicMap) -> str:
        """Return why the ledger of a position waits for the mirror to be granted; empty if it does not."""
        granted = known.grant is not None and known.grant.in_force
        if self._policies is None or granted or known.ledger_end is None:
            return ""
        policy = (await self._policies(known.topic)).values
        return awaited_copy(holders_of(topic_map, known.position.ledger_id), policy)

    async def _within_reach(self, topic: TopicName, position: Position, segment: CommittedSegment) -> Place:
        """Read the object; without an answer from the bucket return what the map has of it."""
        try:
            async with asyncio.timeout(BUCKET_S):
                return await self._place(topic, position, segment)
        except TimeoutError:
            why = f"the bucket did not answer within {BUCKET_S:g} s"
        except Transient as error:
            why = error.message
        key = segment.keys.data
        flaw = Flaw(kind=Kind.UNREACHABLE, key=key, found=why, advice="bring the bucket back, and ask again")
        return Place(segment=segment, data_key=key, flaw=flaw)

    async def _place(self, topic: TopicName, position: Position, segment: CommittedSegment) -> Place:
        target = Target.of(segment, topic, self._cluster)
        place = Place(segment=segment, data_key=target.keys.data)
        if segment.bucket not in self._buckets:
            known = ", ".join(map(repr, sorted(self._buckets)))
            said = f"it is in bucket {segment.bucket!r}; this daemon works with {known}"
            return replace(place, flaw=Flaw(kind=Kind.ELSEWHERE, key=target.keys.data, found=said))
        if segment.foreign:
            return await self._of_broker(place, segment, position)
        found = Tables()
        manifest = await load_manifest(self._reader, target, found)
        if manifest is None:
            return replace(place, flaw=found.flaws[0])
        number = manifest.block_at(position)
        block = manifest.blocks[number]
        place = replace(place, block=block, block_number=number + 1, block_count=len(manifest.blocks))
        return await self._entry(place, block, position)

    async def _of_broker(self, place: Place, segment: CommittedSegment, position: Position) -> Place:
        """Read a ledger that a broker has offloaded itself, up to the entry."""
        flaws = await check_broker_objects(self._reader, segment)
        if flaws:
            return replace(place, flaw=flaws[0])
        with noted(flaws, place.data_key, Kind.BLOCK):
            offset, length = await find_broker_entry(self._reader, segment, position.entry_id)
            place = replace(place, entry_offset=offset, payload_bytes=length)
        return replace(place, flaw=flaws[0]) if flaws else place

    async def _entry(self, place: Place, block: BlockInfo, position: Position) -> Place:
        key = place.data_key
        try:
            reader = self._reader.at(place.segment.bucket)
            decode = partial(decode_verified_block, info=block, key=key, method=place.segment.method)
            payloads = (await reader.checked(key, block.offset, block.length, decode)).payloads
        except BucketMissing:
            raise
        except NotFound:
            return replace(place, flaw=Flaw(kind=Kind.MISSING, key=key, found="no such object"))
        except CorruptData as error:
            return replace(place, flaw=corrupt(Kind.BLOCK, error, entries=entries_of(block)))
        number = position.entry_id - block.first_entry_id
        before = sum(len(one) + ENTRY_OVERHEAD_BYTES for one in payloads[:number])
        offset = block.offset + block.head_bytes + before
        return replace(place, entry_offset=offset, payload_bytes=len(payloads[number]))


def without_segment(known: Explanation, topic_map: TopicMap) -> Explanation:
    """Complete the explanation of a position that no committed segment holds."""
    position, held = known.position, known.held
    loss = next((one for one in topic_map.losses if one.holds(position)), None)
    if topic_map.floor is not None and position <= topic_map.floor:
        first = topic_map.segments[0].begin if topic_map.segments else None
        text = f"offloaded, and deleted again by retention, like all up to {topic_map.floor}"
        advice = f"the oldest stored entry is {first}" if first else "nothing of the topic is stored in the bucket"
        return replace(known, state=State.DELETED, text=text, what_to_do=advice)
    if loss is not None:
        state, text = State.LOST, f"lost: entries {loss} were deleted from the source before they were offloaded"
        if not loss.certain:
            state, text = (
                State.MAYBE_LOST,
                f"it is unknown whether there were entries {loss}: the source deleted them",
            )
        return replace(known, state=state, text=text, what_to_do=f"nothing brings it back; read on from {loss.before}")
    if held.buffer or held.source:
        where = " and ".join(name for name, there in (("buffer", held.buffer), ("source", held.source)) if there)
        text = f"confirmed, and not offloaded yet: only in the {where}"
        advice = "offloadctl offload TOPIC --wait makes it durable now; offloadctl status says what holds it up"
        return replace(known, state=State.NOT_OFFLOADED, text=text, what_to_do=advice)
    return _nowhere(known, topic_map)


def _nowhere(known: Explanation, topic_map: TopicMap) -> Explanation:
    """Explain an entry in no tier: it does not exist, is still to come, or is missing."""
    position, held = known.position, known.held
    end = known.ledger_end.entries if known.ledger_end is not None else held.ended
    newest = max((one for one in (held.newest, topic_map.offloaded) if one is not None), default=None)
    if end is not None and position.entry_id >= end:
        after = topic_map.after(position)
        begins = [Position(part.ledger_id, part.first_entry_id) for part in after.slices] if after is not None else []
        advice = next((f"the next entry is {begin}" for begin in begins if begin > position), "")
        text = f"no entry: ledger {position.ledger_id} ended with {end} entries"
        return replace(known, state=State.NO_ENTRY, text=text, what_to_do=advice)
    beyond = newest is None or position > (topic_map.offloaded or START) or topic_map.awaits(position)
    if held.source is None and beyond:
        text = f"not in the bucket and not in the buffer; the ledger source cannot be read: {held.why}"
        return replace(known, state=State.UNKNOWN, text=text, what_to_do="bring the source back and ask again")
    if newest is None or position > newest:
        text = "the topic has no entries yet" if newest is None else f"beyond the end: the newest entry is {newest}"
        return replace(known, state=State.BEYOND, text=text, what_to_do="nothing: it has not been written yet")
    if position.ledger_id not in topic_map.contexts and not held.in_source:
        text = f"no tier knows a ledger {position.ledger_id} of the topic"
        advice = "ledgers of a topic are not numbered one by one: offloadctl segments shows which there are"
        return replace(known, state=State.NO_ENTRY, text=text, what_to_do=advice)
    text = "in no tier, though entries before and behind it are there"
    return replace(known, state=State.MISSING, text=text, what_to_do=f"offloadctl verify TOPIC; {RESTORE}")
