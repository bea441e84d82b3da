"""Where one entry is: which tiers hold it now, in which object and bytes, verified when, and may its source go?

What is said of the object is not looked up but looked at: the block is read and its checksum compared, the entry found
in it. A position without an entry is explained as well: deleted, lost, not written yet, behind the end of its ledger.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.core.errors import BucketMissing, CorruptData, NotFound, Transient
from offloaderd.core.model import START, LedgerEnd, Loss, Position, TopicName
from offloaderd.format.values import BlockInfo
from offloaderd.format.verify import decode_verified_block
from offloaderd.metadata import paths
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.nodes import record
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import grant as grant_record
from offloaderd.metadata.records import verified as verified_record
from offloaderd.metadata.records.grant import Grant
from offloaderd.metadata.records.verified import SegmentVerified
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.retrying import RetryingReader
from offloaderd.read.ports import Maps
from offloaderd.upkeep.stored import Site
from offloaderd.upkeep.verify import broker_object
from offloaderd.upkeep.verify.flaws import RESTORE, Flaw, Kind, corrupt, noted
from offloaderd.upkeep.verify.segment import Tables, Target, entries_of, load_manifest

BUCKET_S = 8.0
"""How long the bucket may take. Callers wait for half a minute, and an answer without a look is better than none."""


class State(StrEnum):
    """What is to be said of a position in a word."""

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
    """Which of the other tiers hold an entry. `source` is None when it could not be asked; `why` says so.

    `ended` is the number of entries of its ledger, if the source knows that it is closed. `in_source`: the source has
    the ledger. `newest` is the topic's newest entry in any tier.
    """

    buffer: bool
    source: bool | None
    in_source: bool
    ended: int | None
    newest: Position | None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an entry lies in the bucket. Of the entry itself nothing is said when its block is damaged.

    `entry_offset` is that of its head of 12 bytes in the data object, which the payload follows.
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
    """All that is known of a position. `verified` is the scrub's last word on the segment."""

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


class Explainer:
    """Answers for all sites of a cluster."""

    def __init__(
        self,
        maps: Maps,
        held: Callable[[TopicName, Position], Awaitable[Held]],
        metadata: MetadataStore,
        looker: RetryingReader,
        sites: Sequence[Site],
    ) -> None:
        """`held` says what the other tiers hold. It raises NotFound for a topic that none of them knows, Transient."""
        self._maps = maps
        self._held = held
        self._metadata = metadata
        self._looker = looker
        self._cluster = sites[0].cluster
        self._buckets = {site.bucket for site in sites}

    async def explain(self, topic: TopicName, position: Position) -> Explanation:
        """Explain a position. Raises NotFound for an unknown topic, Denied, CorruptData for metadata.

        Transient only where the metadata store does not answer; a bucket that does not is told in the place.
        """
        held = await self._held(topic, position)  # before the map: entries only move from there to here
        topic_map = await self._maps.topic_map(topic)
        segment = topic_map.find(position)
        grant = await self._grant(topic, position.ledger_id)
        known = Explanation(
            topic=topic,
            position=position,
            state=State.OFFLOADED,
            text="",
            held=held,
            ledger_end=topic_map.ends.get(position.ledger_id),
            ledger_deleted_ms=topic_map.deleted.get(position.ledger_id),
            grant=grant,
        )
        if segment is None:
            return without_segment(known, topic_map)
        place = await self._within_reach(topic, position, segment)
        verified = await self._verified(topic, segment)
        if place.flaw is not None:
            text, advice = f"offloaded, and not readable from the bucket now: {place.flaw}", place.flaw.what_to_do
        else:
            text, advice = "offloaded; its block was read and is as it was written", ""
        return replace(known, text=text, what_to_do=advice, place=place, verified=verified)

    async def _within_reach(self, topic: TopicName, position: Position, segment: CommittedSegment) -> Place:
        """Look at the object; what is known of it without a look, if the bucket does not answer."""
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
            said = f"it lies in bucket {segment.bucket!r}; this daemon works with {known}"
            return replace(place, flaw=Flaw(kind=Kind.ELSEWHERE, key=target.keys.data, found=said))
        if segment.foreign:
            return await self._of_broker(place, segment, position)
        found = Tables()
        manifest = await load_manifest(self._looker, target, found)
        if manifest is None:
            return replace(place, flaw=found.flaws[0])
        number = manifest.block_at(position)
        block = manifest.blocks[number]
        place = replace(place, block=block, block_number=number + 1, block_count=len(manifest.blocks))
        return await self._entry(place, block, position)

    async def _of_broker(self, place: Place, segment: CommittedSegment, position: Position) -> Place:
        """Look at a ledger that a broker has offloaded itself, up to the entry."""
        flaws = await broker_object.check_objects(self._looker, segment)
        if flaws:
            return replace(place, flaw=flaws[0])
        with noted(flaws, place.data_key, Kind.BLOCK):
            offset, length = await broker_object.find_entry(self._looker, segment, position.entry_id)
            place = replace(place, entry_offset=offset, payload_bytes=length)
        return replace(place, flaw=flaws[0]) if flaws else place

    async def _entry(self, place: Place, block: BlockInfo, position: Position) -> Place:
        """Read the block and find the entry in it."""
        key = place.data_key
        try:
            looker = self._looker.at(place.segment.bucket)
            decode = partial(decode_verified_block, info=block, key=key, method=place.segment.method)
            payloads = (await looker.checked(key, block.offset, block.length, decode)).payloads
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

    async def _verified(self, topic: TopicName, segment: CommittedSegment) -> SegmentVerified | None:
        found = await record(self._metadata, paths.verified(topic), verified_record.decode)
        return found.of([segment]).get(segment.segment_id) if found is not None else None

    async def _grant(self, topic: TopicName, ledger_id: int) -> Grant | None:
        return await record(self._metadata, paths.grant(topic, ledger_id), grant_record.decode)


def without_segment(known: Explanation, topic_map: TopicMap) -> Explanation:
    """Say what is with a position that no committed segment holds."""
    position, held = known.position, known.held
    loss = next((one for one in topic_map.losses if one.holds(position)), None)
    if topic_map.floor is not None and position <= topic_map.floor:
        first = topic_map.segments[0].begin if topic_map.segments else None
        text = f"offloaded, and deleted again by retention, like all up to {topic_map.floor}"
        advice = f"the oldest that is kept is {first}" if first else "nothing of the topic is kept in the bucket"
        return replace(known, state=State.DELETED, text=text, what_to_do=advice)
    if loss is not None:
        return _lost(known, loss)
    if held.buffer or held.source:
        where = " and ".join(name for name, there in (("buffer", held.buffer), ("source", held.source)) if there)
        text = f"confirmed, and not offloaded yet: only in the {where}"
        advice = "offloadctl offload TOPIC --wait makes it durable now; offloadctl status says what holds it up"
        return replace(known, state=State.NOT_OFFLOADED, text=text, what_to_do=advice)
    return _nowhere(known, topic_map)


def _lost(known: Explanation, loss: Loss) -> Explanation:
    if loss.certain:
        state, text = State.LOST, f"lost: entries {loss} were deleted from the source before they were offloaded"
    else:
        state, text = State.MAYBE_LOST, f"nobody can tell whether there were entries {loss}: the source deleted them"
    return replace(known, state=state, text=text, what_to_do=f"nothing brings it back; read on from {loss.before}")


def _nowhere(known: Explanation, topic_map: TopicMap) -> Explanation:
    """Say why an entry is in no tier: it is none, it is still to come, or it is missing."""
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
        text = f"not in the bucket and not in the buffer; the ledger source cannot be asked: {held.why}"
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
