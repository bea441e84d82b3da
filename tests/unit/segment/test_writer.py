"""Each way that a segment may go through its writer, told by a feed that answers what the test wrote down."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import Loss, Position
from offloaderd.objects.keys import ObjectKind
from offloaderd.segment.builder import SegmentLayout
from offloaderd.segment.committer import Assignment, Surroundings
from offloaderd.segment.feed import Empty, End, Entries, Gap, Lost, Reservation
from offloaderd.segment.roll import NO_VIEW, ExactStop, OnGap, RangeStop, Requested, TopicView
from offloaderd.segment.states import SegmentState
from offloaderd.segment.upload import SegmentFailed
from offloaderd.segment.writer import SegmentWriter
from tests.unit.rigs.feed_cases import batch
from tests.unit.rigs.lives import recorded
from tests.unit.rigs.owned import Owned, offloaded_topic
from tests.unit.rigs.rig import turn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offloaderd.core.model import LedgerInfo
    from offloaderd.format.manifest import LedgerPart, SegmentManifest
    from offloaderd.format.v1 import LedgerLayout
    from offloaderd.metadata.records.attempt import Attempt
    from offloaderd.segment.committer import FindManifest, VerifiedSegment
    from offloaderd.segment.feed import Answer
    from offloaderd.segment.roll import SegmentProgress, StopRule, Views
    from tests.unit.rigs.rig import Rig

LOSS = Loss(Position(5, 9), Position(7, 0), 3)
STOP = RangeStop(payload_bytes=None, gap=OnGap.RECORD)


@dataclass
class ScriptedFeed:
    """Answers one after the other; entries that were taken in part come again, from where they were cut."""

    answers: list[Answer]
    rereadable: bool = True
    closed: int = 0
    waits: int = 0
    restarts: list[Position] = field(default_factory=list)
    parts: list[Position] = field(default_factory=list)

    def take(self, after: Position, bytes_max: int, required: Position | None = None) -> Answer:
        """See EntryFeed."""
        while self.answers:
            found = self.answers[0]
            if not isinstance(found, Entries):
                return found if isinstance(found, Empty | End | Lost) else self.answers.pop(0)
            left = [one for one in found.batches if one.last > after]
            if left:
                at = after.entry_id + 1 if left[0].ledger_id == after.ledger_id else left[0].first_entry_id
                return replace(found, batches=(left[0].between(at, left[0].last_entry_id), *left[1:]))
            self.answers.pop(0)
        return End()

    async def wait(self, timeout_s: float) -> None:
        """What was not there yet is now."""
        self.waits += 1
        await turn()
        if not (len(self.answers) == 1 and isinstance(self.answers[0], Empty)):
            self.answers.pop(0)

    def restart(self, at: Position) -> None:
        """See EntryFeed."""
        self.restarts.append(at)

    def sent(self, through: Position) -> None:
        """See EntryFeed."""
        self.parts.append(through)

    def committed(self, through: Position) -> None:
        """See EntryFeed."""

    async def close(self) -> None:
        """See EntryFeed."""
        self.closed += 1


class Facts:
    """Knows nothing."""

    async def infos(self) -> Mapping[int, LedgerInfo]:
        """See SealFacts."""
        return {}

    async def around(
        self, begin: Position, parts: Sequence[LedgerPart], infos: Mapping[int, LedgerInfo], find: FindManifest
    ) -> Surroundings:
        """See SealFacts."""
        return Surroundings()


@dataclass
class Desk:
    """A writer whose committer remembers what it was asked, and the topic that it writes for."""

    rig: Rig
    owned: Owned
    views: Views = lambda _: NO_VIEW
    manifest = ObjectKind.MANIFEST
    asked: list[str] = field(default_factory=list)
    states: list[SegmentState] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)

    @classmethod
    async def made(cls) -> Desk:
        """With ledger 0 committed, so that segments begin behind it; of each ledger they have a part."""
        rig = await offloaded_topic(10, layout=SegmentLayout(block_bytes=4096, part_bytes=100))
        return cls(rig, await Owned.claim(rig))

    def attempt(self, layout: SegmentLayout | LedgerLayout | None = None) -> Attempt:
        """A new one that begins with ledger 5."""
        context, claim = self.owned.context, self.owned.offloader.claim
        return context.attempt(Position(5, 0), layout or context.layout, context.places.home, epoch=claim.epoch)

    async def write(
        self, feed: ScriptedFeed, stop: StopRule = STOP, *, resumed: Attempt | None = None
    ) -> VerifiedSegment | None:
        """Have a segment written."""
        topic = self.owned.offloader
        self.writer = SegmentWriter(
            self.owned.context, topic.record._attempts, self, failure_tracker=topic.failure_tracker, views=self.views
        )
        work = Assignment(
            attempt=resumed or self.attempt(), after=Position(0, 9), resumed=resumed is not None, opened_s=0.0
        )
        return await self.writer.run(work, feed, stop, Facts())

    def note(self, what: str) -> None:
        """Remember a question, and how far the segment was then."""
        assert self.writer.progress is not None
        self.asked.append(what)
        self.states.append(self.writer.progress.state)

    async def begin(self, attempt: Attempt) -> None:
        """See Committer."""
        self.note("begin")
        await self.owned.offloader.record.begin(attempt)

    async def record_loss(self, gap: Gap) -> None:
        """See Committer."""
        self.losses.append(gap.loss)

    async def before_complete(self, attempt: Attempt) -> None:
        """See Committer."""
        self.note("before_complete")

    async def before_manifest(self, described: SegmentManifest) -> None:
        """See Committer."""
        self.note("before_manifest")
        assert self.owned.context.upload_context.budget.used == 0

    async def commit(self, segment: VerifiedSegment) -> None:
        """See Committer."""
        self.note("commit")

    async def give_up(self, attempt: Attempt, why: str) -> None:
        """See Committer."""
        self.note("give_up")
        self.why = why

    async def left(self, feed: ScriptedFeed) -> Attempt:
        """Have an owner die when it has sealed its segment; returns what it left, without the parts."""

        async def dies(*_: object) -> None:
            raise asyncio.CancelledError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.rig.store, "complete_upload", dies)
            with pytest.raises(asyncio.CancelledError):
                await self.write(feed)
        found = recorded(self.rig)
        assert found is not None
        assert found.seal is not None
        self.asked.clear()
        return replace(found, parts=())


def entries(ledger_id: int, first: int, count: int) -> Entries:
    """Entries as a feed answers them."""
    return Entries((batch(ledger_id, first, count),))


async def test_a_segment_goes_through_its_states_in_order() -> None:
    """What is asked of the committer, and how far the segment is each time; nothing of the budget is left."""
    desk = await Desk.made()
    feed = ScriptedFeed([entries(5, 0, 4), Empty(), entries(5, 4, 3), entries(6, 0, 2), End()])
    written = await desk.write(feed)
    assert written is not None
    assert (str(written.described.range), written.entries, written.reason) == ("5:0..6:1", 9, "end")
    assert desk.asked == ["begin", "before_complete", "before_manifest", "commit"]
    assert desk.states == [
        SegmentState.ASSIGNED, SegmentState.SEALED, SegmentState.COMPLETED, SegmentState.VERIFIED,
    ]  # fmt: skip
    assert desk.writer.progress is not None
    assert desk.writer.progress.state is SegmentState.COMMITTED
    assert (feed.restarts, feed.closed, feed.waits) == ([Position(0, 9)], 1, 1)
    assert feed.parts[-1] == Position(6, 1)
    assert desk.owned.context.upload_context.budget.used == 0


@pytest.mark.parametrize("manifest", [ObjectKind.MANIFEST, ObjectKind.DRAFT])
async def test_totals_are_remembered_of_a_manifest_and_not_of_a_draft(manifest: ObjectKind) -> None:
    """Whoever commits a draft writes the manifest, and may count otherwise: it is read when the next segment is."""
    desk = await Desk.made()
    desk.manifest = manifest
    written = await desk.write(ScriptedFeed([entries(5, 0, 4), End()]))
    assert written is not None
    remembered = desk.owned.context.pasts._behind
    assert (written.attempt.segment_id in remembered) is (manifest is ObjectKind.MANIFEST)


async def test_a_limit_cuts_a_batch_and_ends_the_segment() -> None:
    """The entry that reaches it is the last one."""
    desk = await Desk.made()
    written = await desk.write(ScriptedFeed([entries(5, 0, 10), End()]), replace(STOP, payload_bytes=10))
    assert written is not None
    assert (written.committed.end, written.reason) == (Position(5, 3), "size")


@pytest.mark.parametrize(("gap", "end"), [(OnGap.RECORD, Position(7, 1)), (OnGap.END, Position(5, 9))])
async def test_a_loss_is_recorded_or_ends_the_segment(gap: OnGap, end: Position) -> None:
    """As its rule has it."""
    desk = await Desk.made()
    feed = ScriptedFeed([entries(5, 0, 10), Gap(LOSS), entries(7, 0, 2), End()])
    written = await desk.write(feed, replace(STOP, gap=gap))
    assert written is not None
    assert written.committed.end == end
    assert desk.losses == ([LOSS] if gap is OnGap.RECORD else [])


@pytest.mark.parametrize(
    ("answers", "gap", "why"),
    [
        ([entries(5, 0, 10), Gap(LOSS)], OnGap.FAIL, "the source has lost entries after 5:9 and before 7:0"),
        ([Gap(LOSS), entries(7, 0, 1)], OnGap.RECORD, "the source has lost all entries"),
        ([Lost()], OnGap.RECORD, "the source has lost all entries"),
        ([entries(5, 1, 3)], OnGap.RECORD, "the segment was to begin at 5:0, its first entry is 5:1"),
    ],
)
async def test_what_cannot_become_a_segment_is_given_up(answers: list[Answer], gap: OnGap, why: str) -> None:
    """The committer hears why, once; the feed is closed, the budget is whole."""
    desk = await Desk.made()
    feed = ScriptedFeed(answers)
    with pytest.raises(SegmentFailed):
        await desk.write(feed, replace(STOP, gap=gap))
    assert desk.asked == ["begin", "give_up"]
    assert desk.states[-1] is SegmentState.FAILED
    assert desk.why.startswith(why)
    assert feed.closed == 1
    assert desk.owned.context.upload_context.budget.used == 0


async def test_a_sealed_segment_is_brought_to_its_end_and_not_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is not asked, nor whether it is full: that is decided already."""
    desk = await Desk.made()
    left = await desk.left(ScriptedFeed([entries(5, 0, 10), entries(6, 0, 10), End()]))
    monkeypatch.setattr("offloaderd.segment.builder.LEDGERS_MAX", 1)
    feed = ScriptedFeed([Entries((batch(5, 0, 10), batch(6, 0, 40)))])
    written = await desk.write(feed, replace(STOP, payload_bytes=1), resumed=left)
    assert written is not None
    assert (written.committed.end, written.attempt.seal, written.reason) == (Position(6, 9), left.seal, "continued")
    assert desk.asked == ["before_complete", "before_manifest", "commit"]


async def test_a_sealed_segment_gets_its_last_entry_also_when_that_comes_alone() -> None:
    """A batch that begins at the recorded end belongs to the segment: it is no segment without it."""
    desk = await Desk.made()
    left = await desk.left(ScriptedFeed([entries(5, 0, 10), entries(6, 0, 10), End()]))
    written = await desk.write(
        ScriptedFeed([entries(5, 0, 10), entries(6, 0, 9), Entries((batch(6, 9, 1),)), End()]), resumed=left
    )
    assert written is not None
    assert (written.committed.end, written.entries, written.attempt.seal) == (Position(6, 9), 20, left.seal)


async def test_what_is_full_ends_there_unless_it_replaces_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range goes on with another segment; what replaces others holds all of them or is given up."""
    monkeypatch.setattr("offloaderd.segment.builder.LEDGERS_MAX", 2)
    answers: list[Answer] = [entries(5, 0, 10), entries(6, 0, 10), entries(7, 0, 2), End()]
    for stop, end in ((STOP, Position(6, 9)), (ExactStop(end=Position(7, 1), entries=22), Position(7, 1))):
        written = await (await Desk.made()).write(ScriptedFeed(list(answers)), stop)
        assert written is not None
        assert written.committed.end == end
    desk = await Desk.made()
    with pytest.raises(SegmentFailed, match="the old objects end with 7:1, not with 7:2"):
        await desk.write(ScriptedFeed(answers), ExactStop(end=Position(7, 2), entries=23))


async def test_a_segment_whose_end_is_lost_is_sealed_again() -> None:
    """What is left of it may be the last copy there is."""
    desk = await Desk.made()
    left = await desk.left(ScriptedFeed([entries(5, 0, 10), entries(6, 0, 10), End()]))
    written = await desk.write(ScriptedFeed([entries(5, 0, 10), Lost()]), resumed=left)
    assert written is not None
    assert written.attempt.seal is not None
    assert written.committed.end == written.attempt.seal.end == Position(5, 9)


@pytest.mark.parametrize("known", [False, True])
async def test_a_segment_that_lost_a_ledger_in_its_middle_is_sealed_again(known: bool) -> None:
    """It ends where it was sealed and holds less; also if an owner died behind the record of the loss."""
    desk = await Desk.made()
    left = await desk.left(ScriptedFeed([entries(5, 0, 10), entries(6, 0, 10), entries(7, 0, 2), End()]))
    gap: list[Answer] = [] if known else [Gap(LOSS)]
    written = await desk.write(ScriptedFeed([entries(5, 0, 10), *gap, entries(7, 0, 2), End()]), resumed=left)
    assert written is not None
    assert desk.asked == ["before_complete", "before_manifest", "commit"]
    assert (written.committed.end, written.entries) == (Position(7, 1), 12)
    assert written.attempt.seal is not None
    assert [part.ledger_id for part in written.attempt.seal.ledgers] == [5, 7]


class Exactly(RangeStop):
    """A rule that takes no other end."""

    def flaw(self, progress: SegmentProgress) -> str:
        """See StopRule."""
        return "it would not be the same"


async def test_a_segment_that_may_end_nowhere_else_is_given_up() -> None:
    """It would not be what it is to replace."""
    desk = await Desk.made()
    left = await desk.left(ScriptedFeed([entries(5, 0, 10), entries(6, 0, 10), End()]))
    with pytest.raises(SegmentFailed, match="it would not be the same"):
        await desk.write(
            ScriptedFeed([entries(5, 0, 10), Lost()]), Exactly(payload_bytes=None, gap=OnGap.FAIL), resumed=left
        )
    assert desk.asked == ["give_up"]


async def test_a_sealed_segment_is_left_when_its_entries_have_to_be_pushed_again() -> None:
    """Its owner stops: the parts that are on their way are stored and recorded first, the next owner has them."""
    desk = await Desk.made()
    left = await desk.left(ScriptedFeed([entries(5, 0, 10), entries(6, 0, 10), End()]))
    desk.views = lambda _: TopicView(Requested(stopping=True))
    feed = ScriptedFeed([Entries((batch(5, 0, 4),)), Empty()], rereadable=False)
    assert await desk.write(feed, resumed=left) is None
    assert (desk.asked, feed.closed) == ([], 1)
    found = recorded(desk.rig)
    assert found is not None
    assert found.seal == left.seal


async def test_who_is_cancelled_holds_nothing() -> None:
    """Neither memory nor a place among the parts; the feed is closed."""
    desk = await Desk.made()
    budget = desk.owned.context.upload_context.budget
    held = await Reservation.of(budget, 100, "feed")
    feed = ScriptedFeed([Entries((batch(5, 0, 4),), held), Empty()])
    writing = asyncio.ensure_future(desk.write(feed))  # noqa: TID251 - to cancel it
    while not feed.waits:
        await turn()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    held.release()
    assert (budget.used, feed.closed) == (0, 1)
