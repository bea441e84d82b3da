"""The model: what must hold, checked against the stores themselves at every change.

It knows every entry that was ever written, and looks at the tree of nodes and into the bucket without any of the code
that is to be tested for its caution, only with the formats' decoders. The first thing that is wrong ends the run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import Position
from offloaderd.format import manifest_bytes
from offloaderd.format.chunks import checksums
from offloaderd.format.verify import check_index, decode_verified_block
from offloaderd.metadata import paths
from offloaderd.metadata.pieces import StoredContext
from offloaderd.metadata.port import Versioned
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records import copy as copy_record
from offloaderd.metadata.records import grant as grant_record
from offloaderd.metadata.records import loss as loss_record
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.segment.complete import same_bytes, same_manifest
from tests.simulation.bucket import parsed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from offloaderd.core.entries import Entries
    from offloaderd.core.model import Loss, TopicName
    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metadata.topic_map.map import TopicMap
    from tests.simulation.world import World
    from tests.simulation.zookeeper import Nodes

START = Position(-1, -1)


class Violation(AssertionError):
    """A promise was broken."""


class Oracle:
    """Watches the stores of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.broken: Violation | None = None
        self.maps: dict[TopicName, TopicMap] = {}
        self.noticed: set[tuple[TopicName, Position]] = set()
        """Behind which positions entries have ever been recorded as lost."""
        self.claims: dict[TopicName, str] = {}
        self.commits = 0
        self.entries = 0
        self.reads = 0
        self.kept = 0
        self.grants = 0
        self.published = 0
        self._granted: set[UUID] = set()
        self.removed = 0
        self.history = 0
        self.rebuilding: set[TopicName] = set()
        """Topics whose metadata an operator is writing."""
        self.gone_for_good: set[UUID] = set()
        """Segments that a retention has taken out of a map."""
        self._floors: dict[TopicName, Position] = {}
        """What retention had deleted when a topic was rebuilt: a rebuild knows nothing of it."""
        self._unplanned: dict[TopicName, Position] = {}
        """Begin of a topic that was rebuilt while its history was unfinished. The bucket has no plan of history: the
        next owner has to plan what the source still has before that, and until then it is still to come."""
        self._once: dict[UUID, tuple[TopicName, CommittedSegment]] = {}
        """Every other segment that ever was in a map, whatever the metadata say today."""
        self._held: dict[UUID, TopicName] = {}
        self._checked: set[UUID] = set()
        self._copied: dict[UUID, tuple[str, str] | None] = {}
        self.copies = 0

    def fail(self, promise: str, what: str) -> None:
        """Note that a promise was broken; the first one counts."""
        self._world.trace("oracle", f"{promise} is broken: {what}")
        if self.broken is None:
            self.broken = Violation(f"{promise}: {what}")
            self._world.loop.stop()

    # The tree.

    def changed(self, changed: Sequence[str], before: Nodes, after: Nodes, writer: str) -> None:
        """Check one change of the tree; `writer` is the process that made it, empty when the servers did."""
        moved: dict[TopicName, list[str]] = {}
        for path in changed:
            parts = path.split("/")
            if len(parts) > 6 and parts[1] == "topics":
                moved.setdefault(paths.parse_topic(path), []).append("/".join(parts[6:]))
        for topic, names in moved.items():
            if topic in self.rebuilding:
                continue
            if "epoch" in names:  # also the collector's, which fences an owner in the transaction that it gives up by
                self.claims[topic] = writer
            self._check_writer(topic, names, before, after, writer)
            for name in names:
                if name.startswith("grants/") and f"{paths.topic(topic)}/{name}" in after:
                    self._check_grant(topic, f"{paths.topic(topic)}/{name}", before, after)
            if any(name.startswith(("ledgers/", "losses/")) or name in {"floor", "history/plan"} for name in names):
                self._check_map(topic, after)

    def _check_writer(self, topic: TopicName, names: list[str], before: Nodes, after: Nodes, writer: str) -> None:
        """P4: what an owner alone may write is written by who claimed the topic last."""
        folder = paths.topic(topic)
        for name in names:
            guarded = name in {"attempt", "floor"} or name.startswith(("ledgers/", "losses/", "history/"))
            guarded &= name != "history/ranges"  # a folder, which nobody has to own
            guarded |= name.startswith("trash/") and f"{folder}/{name}" not in before
            if guarded and writer != self.claims.get(topic):
                self.fail("P4", f"{name} of {topic} was written by {writer}, but {self.claims.get(topic)} owns it")

    def _check_grant(self, topic: TopicName, path: str, before: Nodes, after: Nodes) -> None:
        """P3: a ledger is granted only if it is closed, and the map and the bucket have all that was written of it."""
        grant = grant_record.decode(after[path].value, path=path)
        known = grant_record.decode(before[path].value, path=path) if path in before else None
        if not grant.in_force or (known is not None and known.in_force and known.segments == grant.segments):
            return
        ledgers = {one.ledger_id: one for one in self._world.ledgers.topics[topic]}
        ledger = ledgers.get(grant.ledger_id)
        if ledger is not None and ledger.deleted:
            return  # nothing is left that it permits to delete
        if ledger is None or not ledger.closed or grant.entries != len(ledger.entries):
            self.fail("P3", f"ledger {grant.ledger_id} of {topic} is granted with {grant.entries} entries")
        found = {one.segment_id: one for one in self.maps[topic].segments} if topic in self.maps else {}
        for part in grant.segments:
            held = found.get(part.segment_id)
            slices = held.slices if held is not None else ()
            told = (grant.ledger_id, part.first_entry_id, part.last_entry_id)
            if told not in [(one.ledger_id, one.first_entry_id, one.last_entry_id) for one in slices]:
                self.fail("P3", f"the grant of ledger {grant.ledger_id} of {topic} names {part.segment_id}")
            elif held is not None and part.segment_id not in self._granted:
                self._granted.add(part.segment_id)
                self._check_segment(topic, held)
        self.published += 1

    def _check_map(self, topic: TopicName, nodes: Nodes) -> None:
        try:
            found = _map_of(topic, nodes)
        except OffloaderError as error:
            self.fail("P2", f"the map of {topic} cannot be read: {error}")
            return
        before = self.maps.get(topic)
        self.maps[topic] = found
        self.noticed.update((topic, loss.after) for loss in found.losses)
        reached = before.offloaded if before is not None else None
        if reached is not None and (found.offloaded is None or found.offloaded < reached):
            self.fail("P1", f"{topic} was offloaded to {reached}, and is only to {found.offloaded}")
        self._held = {uuid: held for uuid, held in self._held.items() if held != topic}
        self._held.update({segment.segment_id: topic for segment in found.segments})
        if before is not None:
            self._check_removed(topic, before, found, nodes)
        self._check_joints(topic, found)
        for segment in found.segments:
            self._once[segment.segment_id] = (topic, segment)
            if segment.segment_id not in self._checked:
                self._checked.add(segment.segment_id)
                self.commits += 1
                self.history += found.history is not None and segment.begin < found.history.live_begin
                self._check_segment(topic, segment)
            if segment.mirror != self._copied.get(segment.segment_id):
                self._copied[segment.segment_id] = segment.mirror
                if segment.mirror is not None:
                    self.copies += 1
                    self._check_copy(topic, segment)

    def _check_copy(self, topic: TopicName, segment: CommittedSegment) -> None:
        """P1: a copy that the map names is there, with the bytes of the segment.

        The manifest may differ in its chunks: a fenced owner may put that of the segment once more.
        """
        assert segment.copy is not None
        for ours, theirs in zip(segment.keys.all, segment.copy.keys.all, strict=True):
            found, wanted = self._world.buckets.data(theirs), self._world.buckets.data(ours)
            same = same_manifest if ours == segment.keys.manifest else same_bytes
            try:
                same(theirs, found or b"", wanted or b"missing")
            except OffloaderError:
                self.fail("P1", f"{segment.range} of {topic} is recorded as copied, and {theirs} is not {ours}")

    def _names(self, segment_id: UUID) -> set[str]:
        """Return the objects that the map names of a segment in it, and those of the copy that is on record."""
        topic = self._held[segment_id]
        segment = next(one for one in self.maps[topic].segments if one.segment_id == segment_id)
        names = {name for one in segment.each_place for name in one.keys.all}
        node = self._world.tree.nodes.get(path := paths.mirror(topic))
        if node is not None:
            copy = copy_record.decode(node.value, path=path)
            if copy.segment_id == segment_id and not copy.removing:
                names |= set(replace(segment, prefix=copy.prefix).keys.all)
        return names

    def _check_removed(self, topic: TopicName, before: TopicMap, found: TopicMap, nodes: Nodes) -> None:
        """Segments leave from the front, as their retention says, with a trash record, never before the source."""
        ids = {segment.segment_id for segment in found.segments}
        if before.floor is not None and (found.floor is None or found.floor < before.floor):
            self.fail("P2", f"the floor of {topic} fell from {before.floor} to {found.floor}")
        for segment in before.segments:
            if segment.segment_id in ids:
                continue
            self.removed += 1
            self.gone_for_good.add(segment.segment_id)
            self._once.pop(segment.segment_id, None)
            if found.floor is None or segment.end > found.floor:
                self.fail("P1", f"{segment.range} of {topic} has left the map, whose floor is {found.floor}")
            if paths.trash_record(topic, segment.segment_id) not in nodes:
                self.fail("P5", f"{segment.range} of {topic} has left the map and is not on the trash list")
            for part in segment.slices:
                first = Position(part.ledger_id, part.first_entry_id)
                kept = self._world.options.push != "only" and not self._world.is_deleted(topic, first)
                if kept or not self._world.may_go(topic, part.ledger_id):
                    self.fail("P1", f"{segment.range} of {topic} was removed, and ledger {part.ledger_id} is wanted")

    def _check_joints(self, topic: TopicName, found: TopicMap) -> None:
        """P2: segments ascend without overlap, and between them lies nothing but what is recorded as lost."""
        at = found.floor or self._floors.get(topic, START)
        if found.history is not None:
            self._unplanned.pop(topic, None)  # from here on the plan counts, and what lies before it was skipped
        live_begin = found.unfinished.live_begin if found.unfinished is not None else self._unplanned.get(topic)
        for segment in found.segments:
            if segment.begin <= at:
                self.fail("P2", f"{segment.range} of {topic} overlaps what ends at {at}")
            if live_begin is None or not at < live_begin <= segment.begin:  # else what lies between is still to come
                self._check_between(topic, found, at, segment.begin)
            at = segment.end

    def _check_between(self, topic: TopicName, found: TopicMap, after: Position, before: Position) -> None:
        at = self._world.ledgers.following(topic, after)
        while at is not None and at < before:
            unseen = after == START and self._world.is_deleted(topic, at)  # gone before anybody looked
            unseen |= (topic, at) in self._world.ledgers.unseen
            if not unseen and not any(loss.holds(at) for loss in found.losses):
                self.fail("P2", f"{at} of {topic} was skipped: neither offloaded nor recorded as lost")
                return
            if not self._world.is_deleted(topic, at):
                self.fail("P2", f"{at} of {topic} is recorded as lost, and still there")
            at = self._world.ledgers.following(topic, at)

    def _check_segment(self, topic: TopicName, segment: CommittedSegment) -> None:
        """P1: what a segment holds is what was written, to the bit, and all three objects say so."""
        buckets, uuid = self._world.buckets, segment.segment_id
        names = segment.keys.all
        data, index_data, manifest_data = map(buckets.data, names)
        if data is None or index_data is None or manifest_data is None:
            missing = [name for name in names if buckets.data(name) is None]
            self.fail("P1", f"segment {segment.range} of {topic} is committed and {missing} are not there")
            return
        try:
            described = manifest_bytes.decode(manifest_data, key=names[2])
            check_index(index_data, described, key=names[1])
            if not described.data_bytes == len(data) == segment.object_bytes:
                self.fail("P1", f"{names[0]} has {len(data)} bytes, its manifest says {described.data_bytes}")
            if described.range != segment.range or described.managed_ledger != topic.managed_ledger:
                self.fail("P1", f"{names[2]} describes {described.range}, the map {segment.range}")
            at, expected = START, segment.begin
            for block in described.blocks:
                stored = data[block.offset : block.offset + block.length]
                batch = decode_verified_block(stored, block, key=names[0], method=segment.method)
                if block.chunks and block.chunks != checksums(stored, 0, len(stored), described.chunk_bytes)[1]:
                    self.fail("P1", f"{names[2]} has other chunks than the block from {batch.first} on")
                self._check_batch(topic, batch, expected if at == START else None, at, f"segment {uuid}")
                at = batch.last
            if at != segment.end:
                self.fail("P1", f"segment {uuid} ends at {at}, the map says {segment.end}")
        except OffloaderError as error:
            self.fail("P1", f"segment {segment.range} of {topic} cannot be read: {error}")
        self.entries += segment.entries

    def _check_batch(
        self,
        topic: TopicName,
        batch: Entries,
        begins: Position | None,
        after: Position,
        what: str,
        *,
        by_reader: bool = False,
    ) -> None:
        if (
            begins is not None
            and batch.first != begins
            and not (by_reader and self._is_unseen(topic, begins, batch.first))
        ):
            self.fail("P1", f"{what} begins at {batch.first}, not {begins}")
        if begins is None and not self._follows(topic, after, batch.first, by_reader=by_reader):
            self.fail("P6", f"{what}: {batch.first} does not follow {after}")
        for number, payload in enumerate(batch.payloads):
            position = Position(batch.ledger_id, batch.first_entry_id + number)
            if payload != self._world.ledgers.payload(topic, position):
                self.fail("P1", f"{what}: {position} of {topic} is not what was written")
                return

    def _follows(self, topic: TopicName, after: Position, first: Position, *, by_reader: bool) -> bool:
        """Say whether nothing lies between two positions but what is lost, or what a reader cannot know of.

        That is what the source has deleted and what was offloaded after the state to which the metadata went back: a
        list of ledgers does not show that one is missing in it. An owner finds out by the head, and commits nothing.
        """
        at = self._world.ledgers.following(topic, after)
        losses, unseen = (self.maps[topic].losses if topic in self.maps else ()), self._world.ledgers.unseen
        while at is not None and at < first:
            gone = (topic, at) in unseen or any(loss.holds(at) for loss in losses)
            if not gone and not (by_reader and self._is_forgotten(topic, at)):
                break
            at = self._world.ledgers.following(topic, at)
        return at == first

    def _is_unseen(self, topic: TopicName, begins: Position, first: Position) -> bool:
        """Say whether a read may begin behind an entry that was gone with its topic before anybody had seen it."""
        return (topic, begins) in self._world.ledgers.unseen and self._follows(topic, begins, first, by_reader=True)

    def _is_forgotten(self, topic: TopicName, at: Position) -> bool:
        """Say whether an entry was committed, and neither the source nor the map has it: the metadata went back."""
        held = topic in self.maps and self.maps[topic].find(at) is not None
        return not held and self._world.is_deleted(topic, at) and self._forgotten(topic, at) is not None

    # The bucket.

    def deleting(self, names: Sequence[str]) -> None:
        """P5: nothing that is referenced is deleted."""
        for name in names:
            found = parsed(name)
            held = found is not None and found.object_id in self._held
            if held and found is not None and name not in self._names(found.object_id):
                continue
            if found is not None and held and self._world.buckets.data(name) is not None:
                self.fail("P5", f"{name} is deleted, and part of {self._held[found.object_id]}")
            elif found is not None and self._is_once(found.object_id, name):
                topic, segment = self._once[found.object_id]
                if hole := self._uncovered(topic, segment):
                    self.fail("P5", f"{name} is deleted, was committed, and holds {hole}, which nothing else does")

    def _is_once(self, segment_id: UUID, name: str) -> bool:
        """Say whether an object was that of a segment, or of its copy, when a map named it last."""
        known = self._once.get(segment_id)
        if known is None or self._world.buckets.data(name) is None:
            return False
        return name in {key for one in known[1].each_place for key in one.keys.all}

    def aborting(self, name: str, upload_id: str) -> None:
        """P5: nobody aborts what a deployment has begun that said before that it works in the place as well.

        Nor what was there before the place was marked, and that nobody refers to.
        """
        world = self._world
        if upload_id in world.strays:
            self.fail("P5", f"the upload of {name} is aborted, and nobody knows whose it is")
        if world.second is None or upload_id not in world.second.bucket.begun:
            return
        upload = next((one for one in world.buckets.uploads() if one.upload_id == upload_id), None)
        since_ms = world.provisional_since_ms(name)
        if upload is not None and since_ms is not None and upload.initiated_ms > since_ms:
            self.fail("P5", f"the upload of {name} is aborted, and is of another deployment")

    def stored(self, name: str) -> None:
        """P1: what is committed does not change any more."""
        found = parsed(name)
        if found is not None and found.object_id in self._held:
            topic = self._held[found.object_id]
            segment = next(one for one in self.maps[topic].segments if one.segment_id == found.object_id)
            self._check_segment(topic, segment)
            if segment.copy is not None and name in segment.copy.keys.all:
                self._check_copy(topic, segment)

    # Metadata that went back.

    def restorable(self, number: int) -> list[TopicName]:
        """Return the topics that had fewer segments in a state of the tree, and no other ones nor another floor.

        Nor any in another place: an operator has deleted it there since, on purpose.
        """
        nodes, found = self._world.tree.history[number].nodes, []
        for topic, now in self.maps.items():
            then, places = _map_of(topic, nodes), {(one.segment_id, one.bucket) for one in now.segments}
            same = then.floor == now.floor and places.issuperset((one.segment_id, one.bucket) for one in then.segments)
            if not same or now.unfinished is not None:
                return []
            if len(then.segments) < len(places) and paths.policy(topic) in nodes:
                found.append(topic)
        return found

    def finished_since(self, number: int, topic: TopicName) -> bool:
        """Say whether a topic had an open attempt in a state of the tree whose commit is the only one since."""
        nodes = self._world.tree.history[number].nodes
        node = nodes.get(path := paths.attempt(topic))
        if node is None or len(_map_of(topic, nodes).segments) + 1 < len(self.maps[topic].segments):
            return False
        found = attempt_record.decode(node.value, path=path)
        return found.seal is None and found.segment_id in self._once

    def restored(self, topics: Sequence[TopicName]) -> None:
        """Take over what the metadata say of topics now, whatever they said before."""
        for topic in topics:
            known = self.maps.pop(topic, None)
            if known is not None and known.floor is not None:
                self._floors[topic] = known.floor
            nodes = self._world.tree.nodes
            begins = next((one.begin for one in _map_of(topic, nodes).segments), START)
            if known is not None and known.unfinished is not None and begins >= known.unfinished.live_begin:
                self._unplanned[topic] = begins
            self._check_map(topic, nodes)

    def is_unplanned(self, topic: TopicName) -> bool:
        """Say whether the source has entries before the begin of a rebuilt topic, and no owner has planned them yet."""
        begin = self._unplanned.get(topic, START)
        ledgers = self._world.ledgers.topics[topic]
        return any(one.entries and not one.deleted and one.ledger_id < begin.ledger_id for one in ledgers)

    def can_be_repeated(self, topic: TopicName) -> bool:
        """Say whether the source still has all that was committed and that the map does not have."""
        missing = [one for owner, one in self._once.values() if owner == topic and one.segment_id not in self._held]
        slices = [part for one in missing for part in one.slices]
        return not any(self._world.is_deleted(topic, Position(part.ledger_id, part.first_entry_id)) for part in slices)

    def check_kept(self) -> None:
        """P1 at the end: what was ever committed is in the map, however old its metadata were meanwhile."""
        for uuid, (topic, segment) in self._once.items():
            if uuid not in self._held and (hole := self._uncovered(topic, segment)):
                self.fail("P1", f"segment {uuid} of {topic} was committed, and {hole} is in no segment any more")

    def reached(self, topic: TopicName) -> Position | None:
        """Return the newest entry that was ever committed, whatever the metadata say today."""
        found = self.maps.get(topic)
        ends = [one.end for owner, one in self._once.values() if owner == topic]
        return max([*ends, *([found.offloaded] if found is not None and found.offloaded else [])], default=None)

    def _uncovered(self, topic: TopicName, segment: CommittedSegment) -> Position | None:
        """Return the first entry of a segment that is in no segment of the map; None: all of them are."""
        found = self.maps[topic]
        floor = found.floor or self._floors.get(topic, START)
        for part in segment.slices:
            for entry_id in range(part.first_entry_id, part.last_entry_id + 1):
                at = Position(part.ledger_id, entry_id)
                if found.find(at) is None and at > floor:
                    return at
        return None

    # The source.

    def deleting_source(self, topic: TopicName, ledger_id: int) -> None:
        """P3: a ledger is deleted from its source only if all of it can be read from the bucket, and was granted."""
        if (topic, ledger_id) in self._world.revoked:
            self.fail("P3", f"ledger {ledger_id} of {topic} is deleted, and its grant was revoked")
        if self._world.options.retention != "granted":
            self.fail("P3", f"ledger {ledger_id} of {topic} is deleted by us, who only publish grants")
        found = self.maps.get(topic)
        ledger = self._world.ledgers.find(topic, ledger_id)
        self.grants += 1
        checked: set[UUID] = set()
        for entry_id in range(len(ledger.entries)):
            position = Position(ledger_id, entry_id)
            segment = found.find(position) if found is not None else None
            segment = segment or self._forgotten(topic, position)
            if segment is None:
                self.fail("P3", f"ledger {ledger_id} of {topic} is deleted, and {position} is not offloaded")
                return
            if segment.segment_id not in checked:
                checked.add(segment.segment_id)
                self._check_segment(topic, segment)

    def _forgotten(self, topic: TopicName, position: Position) -> CommittedSegment | None:
        """Return a segment that old metadata do not know and that holds an entry: it was granted before."""
        for owner, one in self._once.values():
            if owner == topic and one.begin <= position <= one.end:
                return one
        return None

    # Readers.

    def read(self, topic: TopicName, batch: Entries, wanted: Position | None, after: Position) -> None:
        """P6: a reader gets each entry once, in order, as it was written."""
        self.reads += len(batch.payloads)
        self._check_batch(topic, batch, wanted, after, "a read", by_reader=True)


def _map_of(topic: TopicName, nodes: Nodes) -> TopicMap:
    contexts: dict[int, StoredContext] = {}
    losses: dict[Loss, str] = {}
    folder, lost = f"{paths.ledgers(topic)}/", f"{paths.losses(topic)}/"
    for path, node in sorted(nodes.items()):
        if path.startswith(folder):
            ledger_id, *number = map(int, path[len(folder) :].split("/"))
            if number:
                known = contexts[ledger_id]
                below = {**known.pieces, number[0]: Versioned(node.value, node.version)}
                contexts[ledger_id] = replace(known, pieces=below)
            else:
                contexts[ledger_id] = StoredContext(node.value, node.version)
        elif path.startswith(lost):
            losses[loss_record.decode(node.value, path=path)] = path[len(lost) :]
    floor = nodes.get(paths.floor(topic))
    base = Versioned(floor.value, floor.version) if floor is not None else None
    plan = nodes.get(paths.history_plan(topic))
    planned = Versioned(plan.value, plan.version) if plan is not None else None
    return catalog.TopicMap.build(topic, contexts, losses, base, planned)
