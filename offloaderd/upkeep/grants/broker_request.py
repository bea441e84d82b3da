"""One closed ledger at a broker's request: whether all of it is in the bucket, and what prevents that.

The broker deletes its own copy by the answer, so the map alone does not count: entries and payload bytes must be those
of BookKeeper, and the objects are checked again (`copy_check.py`).
"""

from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from offloaderd.core.errors import InvalidInput, OffloaderError, Unsound
from offloaderd.core.limits import Bounded
from offloaderd.core.model import LedgerOffload, Position, TopicName
from offloaderd.core.names.managed_ledgers import mounted_entries
from offloaderd.history.adoption import located
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map.conversion import holders_of
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.kinds import broker_drivers
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.segment.context import OffloadContext
from offloaderd.topic.offloader import TopicOffloader
from offloaderd.topic.requests import Wanted
from offloaderd.upkeep.grants.copy_check import CopyChecker, demanded_copies, holding_all, segments_of

KNOWN_MAX = 1000
"""Objects of brokers that are remembered as verified."""


class ClosedLedger(NamedTuple):
    """A closed ledger as BookKeeper has it; `length_bytes` of all payloads."""

    ledger_id: int
    last_entry_id: int
    length_bytes: int

    @property
    def last(self) -> Position:
        """Position of its last entry."""
        return Position(self.ledger_id, self.last_entry_id)


class Copies:
    """Checks of the tier's copies of closed ledgers, with a daemon's stores."""

    def __init__(self, context: OffloadContext) -> None:
        self._context = context
        self._checker = CopyChecker(context, readback=False)
        self._theirs: Bounded[tuple[TopicName, int, str, UUID], CommittedSegment] = Bounded(KNOWN_MAX)

    async def verified(self, topic_map: TopicMap, wanted: ClosedLedger, policy: OffloadPolicies) -> int:
        """Return how many segments hold the ledger, all of them checked now, and the copies that the policy demands.

        Raises Unsound, Transient, Denied.
        """
        ledger_id, length = wanted.ledger_id, length_of(topic_map, wanted.ledger_id)
        holding, entries = segments_of(topic_map, ledger_id), topic_map.ends[ledger_id].entries
        if (entries, length) != (wanted.last_entry_id + 1, wanted.length_bytes):
            raise Unsound(
                "size",
                f"the tier has {entries} entries of {length} bytes of ledger {ledger_id} of {topic_map.topic}, and "
                f"BookKeeper {wanted.last_entry_id + 1} of {wanted.length_bytes}",
            )
        for segment in holding:
            if segment.foreign:
                key = topic_map.topic, ledger_id, segment.bucket, segment.segment_id
                await self._located(key, segment.driver, named=False)
            else:
                await self._checker.check(topic_map, segment, ledger_id)
        for copy in demanded_copies(holding, policy):
            await self._checker.check(topic_map, copy, ledger_id)
        return len(holding)

    async def of_broker(self, topic: TopicName, ledger_id: int, bucket: str, object_id: UUID) -> CommittedSegment:
        """Return a ledger that Pulsar's own driver has offloaded (PIP-17), as Pulsar's list describes it.

        The result is remembered for its topic; for another topic the objects are checked anew, and refused. Raises
        InvalidConfig for an unknown bucket, NotFound, CorruptData, Transient and Denied.
        """
        key = topic, ledger_id, bucket, object_id
        known = self._theirs.get(key)
        if known is None:
            known = await self._located(key)
            self._theirs[key] = known
        return known

    async def checked_before_deletion(
        self, topic: TopicName, ledger_id: int, bucket: str, object_id: UUID
    ) -> CommittedSegment:
        """Return such a ledger before its deletion: checked now, and not remembered. Raises as `of_broker`."""
        self._theirs.pop(key := (topic, ledger_id, bucket, object_id), None)
        return await self._located(key)

    async def _located(
        self, key: tuple[TopicName, int, str, UUID], driver: str = "", *, named: bool = True
    ) -> CommittedSegment:
        topic, ledger_id, bucket, object_id = key
        there = self._context.places.of_bucket(bucket) or self._context.places.home
        driver = driver or broker_drivers(there.driver.get("driver", ""))[0]
        offload = LedgerOffload(
            object_id=object_id, driver=driver, properties={"bucket": bucket}, offloaded_ms=0, source_deleted=True
        )
        return await located(self._context, topic, ledger_id, offload, named=named)


def is_held(topic_map: TopicMap, ledger_id: int) -> bool:
    """Whether the map has all of a closed ledger that retention has not deleted, which is enough to read it."""
    floor = topic_map.floor
    first = floor.entry_id + 1 if floor is not None and floor.ledger_id == ledger_id else 0
    with suppress(Unsound):
        holding_all(topic_map, ledger_id, first)
        return True
    return False


class Extent(NamedTuple):
    """What a broker may read of a ledger: entries 0 to `entries` - 1, so many bytes of payload."""

    entries: int
    length_bytes: int


def extent_of(topic_map: TopicMap, ledger_id: int, object_id: UUID) -> Extent | None:
    """Return how far a ledger reaches that Pulsar's list calls offloaded; None if the map does not have all of it.

    A ledger that was mounted reaches as far as its id in the list says, also if its first cluster has written on since:
    brokers count by the list. Any other one is closed, and reaches to its end.
    """
    entries = mounted_entries(object_id)
    if entries is None:
        held = is_held(topic_map, ledger_id)
        return Extent(topic_map.ends[ledger_id].entries, length_of(topic_map, ledger_id)) if held else None
    if ledger_id in topic_map.deleted:
        return None
    floor = topic_map.floor
    expected = floor.entry_id + 1 if floor is not None and floor.ledger_id == ledger_id else 0
    length_bytes = 0
    for segment in holders_of(topic_map, ledger_id):
        part = next(part for part in segment.slices if part.ledger_id == ledger_id)
        if part.first_entry_id != expected or expected >= entries:
            break
        expected, length_bytes = part.last_entry_id + 1, length_bytes + part.payload_bytes
    return Extent(entries, length_bytes) if expected >= entries else None


def is_gone(topic_map: TopicMap, ledger_id: int) -> bool:
    """Whether the deletion of a ledger from the tier is recorded: by a mark, or with everything up to the floor.

    History that is still to come, and ledgers that the source had lost, were never here and do not count.
    """
    if ledger_id in topic_map.deleted:
        return True
    lost = any(loss.after.ledger_id < ledger_id < loss.before.ledger_id for loss in topic_map.losses)
    if lost or topic_map.awaits(Position(ledger_id, 0)):
        return False
    floor, end = topic_map.floor, topic_map.ends.get(ledger_id)
    if floor is None or ledger_id != floor.ledger_id:
        return floor is not None and ledger_id < floor.ledger_id
    return end is not None and end.entries <= floor.entry_id + 1


def is_whole(topic_map: TopicMap, ledger_id: int) -> bool:
    """Whether the map has all of a closed ledger and it joins its neighbours, so that its source may delete it."""
    with suppress(Unsound):
        segments_of(topic_map, ledger_id)
        return True
    return False


def length_of(topic_map: TopicMap, ledger_id: int) -> int:
    """Return the payload bytes of a ledger in the map."""
    parts = (part for segment in topic_map.segments for part in segment.slices)
    return sum(part.payload_bytes for part in parts if part.ledger_id == ledger_id)


def needs_push(offloader: TopicOffloader, wanted: ClosedLedger) -> bool:
    """Whether only the broker can still supply entries of the ledger."""
    if not offloader.handle.push_only:
        return False
    last = offloader.handle.last_offered()
    return last is None or last < wanted.last


async def request_commit(offloader: TopicOffloader, wanted: ClosedLedger, by: str) -> str:
    """Seal and commit a ledger's entries now; return what prevents it at the moment, empty for nothing.

    Raises Conflict when the topic's method takes nothing, Transient and Fenced.
    """
    if offloader.handle.push_only:
        offloader.handle.ledger_closed(wanted.ledger_id, wanted.last_entry_id, 0)
        await offloader.record.note_closed(wanted.last)
    try:
        await offloader.by_hand.ask(Wanted(to=wanted.last), by)
    except InvalidInput as error:
        return str(error)  # the source has not heard of the close yet
    except OffloaderError as error:
        if offloader.status().stalled_reason:
            return offloader.status().stalled_reason
        raise error from None
    return offloader.status().stalled_reason
