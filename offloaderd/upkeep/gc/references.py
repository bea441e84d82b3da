"""All segments that the metadata of the cluster's topics refers to: committed, being written, or in the trash.

A segment only moves forward: attempt, map, trash, deleted; its attempt is recorded before its first byte. The nodes of
each topic are read in this order. So a segment that exists all the while is seen at least once, however it moves. A
segment whose objects were listed before, and which is not seen, will never be referred to.

A read is complete or fails. An unreadable node, a foreign folder or an unknown record may hide a reference, so nothing
may be concluded from the rest.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable
from uuid import UUID

from offloaderd.core.aio import each
from offloaderd.core.errors import Conflict, InvalidInput
from offloaderd.core.model import TopicName
from offloaderd.metadata import nodes, paths, pieces
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records import copy as copy_record
from offloaderd.metadata.records import deletion
from offloaderd.metadata.records import history as history_record
from offloaderd.metadata.records.deletion import Trash
from offloaderd.metadata.records.history import RangeState
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects.keys import SegmentKeys

FOLDERS = {
    "history": frozenset({"attempt", "attempts", "driver", "holder", "plan", "ranges", "writers"}),
    "rollback": frozenset({"attempt", "order"}),
}
KNOWN_NODES = frozenset({"asked", "attempt", "epoch", "floor", "identity", "mirror", "owner", "policy", "verified"})
KNOWN_NODES |= {"grants", "ledgers", "losses", "trash", *FOLDERS}
"""All nodes that a topic's folder may hold; a newer version may refer to segments in nodes that are unknown here."""


@runtime_checkable
class Syncing(Protocol):
    """A store whose server can catch up with its leader before a read."""

    async def sync(self, path: str) -> None:
        """Make later reads show at least what is stored at this moment."""
        ...


@dataclass(frozen=True, slots=True)
class Committed:
    """A segment of a topic's map, with what the bucket must hold of it; `mirror` is the place of its copy."""

    topic: TopicName
    object_bytes: int
    bucket: str
    keys: SegmentKeys
    foreign: bool
    mirror: tuple[str, str] | None = None

    @property
    def place(self) -> tuple[str, str]:
        """Bucket and prefix."""
        return self.bucket, self.keys.prefix

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """Its place, and that of its copy."""
        return (self.place,) if self.mirror is None else (self.place, self.mirror)

    def keys_in(self, place: tuple[str, str]) -> SegmentKeys:
        """Return the keys of its objects in a place."""
        return replace(self.keys, prefix=place[1])


@dataclass(slots=True)
class References:
    """All references at one time."""

    topics: set[TopicName] = field(default_factory=set)
    committed: dict[UUID, Committed] = field(default_factory=dict)
    attempts: dict[UUID, TopicName] = field(default_factory=dict)
    trash: dict[UUID, tuple[TopicName, Trash]] = field(default_factory=dict)
    copies: dict[tuple[UUID, tuple[str, str]], tuple[TopicName, Trash]] = field(default_factory=dict)
    """Copies on the trash list by segment and place, of segments that stay in the map."""

    def __contains__(self, segment_id: object) -> bool:
        """Whether anything refers to a segment."""
        return segment_id in self.committed or segment_id in self.attempts or segment_id in self.trash

    def holds(self, segment_id: UUID, place: tuple[str, str]) -> bool:
        """Whether anything refers to a segment's objects in a place: its copies elsewhere may be garbage."""
        known = self.committed.get(segment_id)
        there = known is None or place in known.places
        if (segment_id, place) in self.copies:
            return True
        return segment_id in self.attempts or segment_id in self.trash or (known is not None and there)


async def read(store: MetadataStore) -> References:
    """Read the references of all topics. Raises CorruptData and Conflict for what may hide one, and Transient."""
    if isinstance(store, Syncing):
        await store.sync("/")
    if await nodes.node(store, paths.REBUILD) is not None:
        raise Conflict(
            "the metadata is being rebuilt from the bucket, or that was broken off",
            hint="run offloaderd rebuild --apply to its end first",
        )
    found = References()
    folders = await nodes.topic_folders(store)
    for topic, attempts, segments, trash in await each(folders, lambda folder: _read_topic(store, folder)):
        found.topics.add(topic)
        found.attempts.update(dict.fromkeys(attempts, topic))
        found.committed.update(segments)
        found.trash.update({one.segment_id: (topic, one) for one in trash if not one.of_copy})
        copies = [one for one in trash if one.of_copy]
        found.copies.update({(one.segment_id, (one.bucket or "", one.prefix or "")): (topic, one) for one in copies})
    return found


async def _read_topic(
    store: MetadataStore, folder: str
) -> tuple[TopicName, list[UUID], dict[UUID, Committed], list[Trash]]:
    """Read a topic's attempts, contexts and trash, in this order. Raises Conflict for an unknown node."""
    try:
        topic = paths.parse_topic(folder)
    except InvalidInput:
        raise Conflict(
            f"{folder} lies among the topics and is none",
            hint="delete the node if no program of yours needs it; until then nothing is collected",
        ) from None
    names = await store.children(folder)
    below = {name: await store.children(f"{folder}/{name}") for name in FOLDERS if name in names}
    beneath = {f"{name}/{one}" for name, found in below.items() for one in {*found} - FOLDERS[name]}
    unknown = sorted({*names} - KNOWN_NODES | beneath)
    if unknown:
        raise Conflict(
            f"{folder} holds {', '.join(unknown)}, of which this version knows nothing",
            hint="a newer offloaderd may keep references there: collect with that version",
        )
    # One that begins later has no objects yet.
    attempts = await _attempt(store, paths.attempt(topic)) if "attempt" in names else []
    if "mirror" in names:
        copy = await nodes.record(store, paths.mirror(topic), copy_record.decode)
        attempts += [copy.segment_id] if copy is not None and not copy.removing else []
    if below.get("history"):
        attempts += await _attempt(store, paths.history_attempt(topic)) + await _ranges(store, topic)
        attempts += [UUID(name) for name in await store.children(paths.history_attempts(topic))]
    if below.get("rollback"):
        attempts += await _attempt(store, paths.rollback_attempt(topic))
    return topic, attempts, await _segments(store, topic), await _trash(store, topic)


async def _attempt(store: MetadataStore, path: str) -> list[UUID]:
    attempt = await nodes.record(store, path, attempt_record.decode)
    return [attempt.segment_id] if attempt is not None else []


async def _ranges(store: MetadataStore, topic: TopicName) -> list[UUID]:
    found = []
    for name in await store.children(paths.history_ranges(topic)):
        path = f"{paths.history_ranges(topic)}/{name}"
        ranges = await nodes.record(store, path, history_record.decode_ranges) or ()
        found += [one.segment_id for one in ranges if one.segment_id is not None and one.state is RangeState.CLAIMED]
    return found


async def _segments(store: MetadataStore, topic: TopicName) -> dict[UUID, Committed]:
    folder = paths.ledgers(topic)
    found: dict[UUID, Committed] = {}
    for name in await store.children(folder):
        path = f"{folder}/{name}"
        stored = await nodes.stored_context(store, path)
        if stored is None:
            continue  # its last segment was removed meanwhile, and is in the trash by now
        for one in pieces.joined(stored, path).segments:
            segment = catalog.committed(int(name), one)
            found[one.segment_id] = Committed(
                topic, one.object_bytes, segment.bucket, segment.keys, segment.foreign, segment.mirror
            )
    return found


async def _trash(store: MetadataStore, topic: TopicName) -> list[Trash]:
    folder = paths.trash(topic)
    found = [
        await nodes.record(store, f"{folder}/{name}", deletion.decode_trash) for name in await store.children(folder)
    ]
    return [one for one in found if one is not None]
