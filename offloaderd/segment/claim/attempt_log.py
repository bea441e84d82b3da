"""The transactions of a topic's attempt: begin, update, commit, give up; and the changes of its map.

Each is one transaction under the epoch (see `fence.py`). After a lost answer or a cancellation the segment's id shows
its outcome: under one epoch there is no other writer of the attempt.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import UUID

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, Fenced, NotFound
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import LedgerEnd, Loss, OffloadMethod
from offloaderd.core.retry import until_answered
from offloaderd.core.traces import NO_TRACES, Traces
from offloaderd.metadata import nodes, paths, pieces, port
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.port import Create, Delete, MetadataStore, Replace, Step
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records import deletion
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.metadata.topic_map import conversion, merging
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import Edit, TopicMap
from offloaderd.segment.claim.fence import Claim, Fence
from offloaderd.segment.claim.head import HeadKeeper
from offloaderd.segment.context import OffloadContext

log = structlog.get_logger(__name__)


class AttemptLog:
    """Writes a topic's attempt and commits it, under one claim.

    The attempt is recorded at `path`, by default that of live segments. Steps `along` are part of the same transaction.
    Executors of one job share a claim: an update replaces only what this log has read or written, so an executor that
    counted as lost does not change its successor's record.
    """

    def __init__(
        self,
        store: MetadataStore,
        claim: Claim,
        *,
        clock: Clock,
        metrics: Metrics,
        path: str | None = None,
        head: HeadKeeper | None = None,
        traces: Traces = NO_TRACES,
    ) -> None:
        self._store = store
        self._claim = claim
        self.fence = Fence(store, claim, clock=clock, metrics=metrics)
        self._clock = clock
        self._metrics = metrics
        self.head = head
        self._traces = traces
        self._path = path or paths.attempt(claim.topic)
        self._version = 0
        self._ours: list[Attempt] = []  # what this log has read or may have written; empty: nothing yet

    async def begin(self, attempt: Attempt, along: Sequence[Step] = ()) -> None:
        """Record the attempt before its first byte. Raises Fenced."""

        async def recorded() -> bool:
            found = await self.load()
            return found is not None and found.segment_id == attempt.segment_id

        await self.fence.settle([Create(self._path, attempt_record.encode(attempt)), *along], recorded)
        self._version, self._ours = 0, [attempt]

    async def update(self, attempt: Attempt) -> None:
        """Replace the attempt with a later state of itself. Raises Fenced, Conflict when another executor wrote it."""

        async def recorded() -> bool:
            return await self._read() == attempt

        value, ours = attempt_record.encode(attempt), tuple(self._ours)
        self._ours.append(attempt)
        written = await self._write(
            attempt.segment_id, lambda version: [Replace(self._path, value, version)], recorded, ours
        )
        self._version, self._ours = written + 1, [attempt]

    async def _write(
        self,
        segment_id: UUID,
        steps: Callable[[int], Sequence[Step]],
        recorded: Callable[[], Awaitable[bool]],
        ours: Sequence[Attempt] = (),
    ) -> int:
        """Carry out the steps against the attempt's version, and return it. Raises Fenced, Conflict, NotFound.

        An attempt in another version has to be one of `ours`, if there are any.
        """
        while True:
            version = self._version
            try:
                await self.fence.settle(steps(version), recorded)
            except Fenced:
                raise
            except (Conflict, NotFound):
                found = await until_answered(self._clock, self._read)
                if found is None or found.segment_id != segment_id or self._version == version:
                    raise
                if ours and found not in ours:
                    self._version = version  # another executor's record is not replaced
                    raise
            else:
                return version

    async def load(self) -> Attempt | None:
        """Read the recorded attempt, if any, to resume it."""
        found = await self._read()
        self._ours = [found] if found is not None else []
        return found

    async def _read(self) -> Attempt | None:
        node = await nodes.node(self._store, self._path)
        if node is None:
            return None
        self._version = node.version
        return attempt_record.decode(node.value, path=self._path)

    async def commit(
        self, topic_map: TopicMap, segment: CommittedSegment, ends: Mapping[int, LedgerEnd], along: Sequence[Step] = ()
    ) -> TopicMap:
        """Add the segment to the contexts of its ledgers and delete the attempt, in one transaction; returns the map.

        `ends` has the closed ledgers. Raises Fenced, and Conflict when another process changed the contexts.
        """
        steps, after = await self._fitted(topic_map, lambda known: known.with_commit(segment, ends), along)
        await self._enter(topic_map, after, segment, [*steps, *along])
        return after

    async def exchange(self, topic_map: TopicMap, made: CommittedSegment, along: Sequence[Step] = ()) -> TopicMap:
        """Replace segments by the one made from them and delete the attempt, in one transaction; returns the map.

        A whole ledger replaces its slices of segments, a merged segment its sources. Raises Fenced, Conflict
        as `conversion.with_whole` and `merging.with_merged` do, or when another process changed a context.
        """
        whole = made.method is OffloadMethod.LEDGER_BASED
        replaced, now_ms = conversion.with_whole if whole else merging.with_merged, self._clock.wall_ms()
        steps, after = await self._fitted(topic_map, lambda known: replaced(known, made, now_ms=now_ms), along)
        await self._enter(topic_map, after, made, [*steps, *along])
        return after

    async def check_head(self, topic_map: TopicMap, attempt: Attempt | None = None) -> None:
        """Check that no bucket is ahead of the map, before the manifest of an attempt is put, or a loss recorded.

        Raises IdentityRefused, Fenced.
        """
        if self.head is not None and attempt is not None:
            await self.head.check(topic_map, attempt.segment_id, storing=attempt.bucket)
        elif self.head is not None:
            await self.head.check(topic_map)

    async def _enter(self, before: TopicMap, after: TopicMap, segment: CommittedSegment, steps: Sequence[Step]) -> None:
        """Carry out the steps of a commit, and delete the attempt in the same transaction.

        The topic's head in the bucket is put first, so that it is never behind the metadata.
        """
        if self.head is not None:
            await self.head.before_commit(before, after, segment)

        async def recorded() -> bool:
            current = await catalog.load(self._store, self._claim.topic)
            return any(known.segment_id == segment.segment_id for known in current.segments)

        started = self._clock.monotonic()
        await self._write(segment.segment_id, lambda version: [*steps, Delete(self._path, version)], recorded)
        exemplar = self._traces.exemplar(segment.segment_id)
        self._metrics.metadata_commit_duration_seconds.observe(self._clock.monotonic() - started, exemplar)

    async def note_ends(self, topic_map: TopicMap, ends: Mapping[int, LedgerEnd]) -> TopicMap:
        """Record the ends of offloaded ledgers, so that one deleted at the source is no loss; returns the map.

        Raises Fenced.
        """
        return await self.change(topic_map, lambda known: known.with_ends(ends))

    async def note_loss(self, topic_map: TopicMap, loss: Loss) -> TopicMap:
        """Record entries that were deleted before they were offloaded; returns the map. Raises Fenced."""
        steps, after = topic_map.with_loss(loss)

        async def recorded() -> bool:
            return (await catalog.load(self._store, self._claim.topic)).losses == after.losses

        try:
            await self._store.create(paths.losses(self._claim.topic), b"")
        except Conflict:
            log.debug("losses.folder_exists", topic=str(self._claim.topic))
        await self.fence.settle(steps, recorded)
        return after

    async def change(self, topic_map: TopicMap, edit: Edit) -> TopicMap:
        """Carry out the steps of an edit, if any; returns the map. Raises Fenced, Conflict."""
        steps, after = await self._fitted(topic_map, edit)
        await self._settle(steps, after)
        return after

    async def _settle(self, steps: Sequence[Step], after: TopicMap) -> None:
        async def recorded() -> bool:
            return await catalog.load(self._store, self._claim.topic) == after

        if steps:
            await self.fence.settle(steps, recorded)

    async def _fitted(self, topic_map: TopicMap, edit: Edit, along: Sequence[Step] = ()) -> tuple[list[Step], TopicMap]:
        """Return the steps of an edit, and the map; contexts too large for the transaction are cut into pieces first.

        Raises Fenced, Conflict, and what the edit raises.
        """
        steps, after = edit(topic_map)
        if port.request_bytes([*steps, *along]) > pieces.ROOM_BYTES:
            written = {step.path for step in steps}
            touched = [one for one in topic_map.contexts if paths.ledger(self._claim.topic, one) in written]
            for ledger_id in touched:
                cuts, cut = topic_map.in_pieces(ledger_id)
                await self._settle(cuts, cut)
                topic_map = cut
            steps, after = edit(topic_map)
        if sizes := [len(step.value) for step in steps if isinstance(step, Create | Replace)]:
            self._metrics.metadata_node_bytes.set(max(sizes))
        return steps, after

    async def give_up(self, attempt: Attempt, reason: str, along: Sequence[Step] = ()) -> None:
        """Put the attempt's objects on the trash list and delete the attempt, in one transaction. Raises Fenced."""
        path = paths.trash_record(self._claim.topic, attempt.segment_id)
        trash = deletion.Trash(
            segment_id=attempt.segment_id,
            upload_id=attempt.upload_id,
            reason=reason,
            decided_ms=self._clock.wall_ms(),
            bucket=attempt.driver_properties.get("bucket"),
            prefix=attempt.driver_properties.get("prefix"),
            ledger_id=attempt.ledger_id,
            readable=False,
        )

        async def recorded() -> bool:
            return await self.load() is None

        create = Create(path, deletion.encode_trash(trash))
        await self._write(attempt.segment_id, lambda version: [create, *along, Delete(self._path, version)], recorded)


def attempt_log(
    context: OffloadContext, claim: Claim, path: str | None = None, head: HeadKeeper | None = None
) -> AttemptLog:
    """Return the log of an attempt under a claim; `head` is needed to commit it."""
    upload = context.upload_context
    return AttemptLog(
        context.metadata,
        claim,
        clock=upload.clock,
        metrics=upload.metrics,
        path=path,
        head=head,
        traces=upload.traces,
    )
