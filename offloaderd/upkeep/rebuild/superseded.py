"""Which segments of a rebuild lie in others that were made of them. Pure.

One overlap is no contradiction: a ledger in an object of its own supersedes its slices in streaming segments, since
that is how segments are rewritten for a stock broker (`history/rewriting/rollback.py`). The object's manifest is
written when all of its data is stored; the segments it replaces are deleted only afterwards. A segment keeps the
slices that nothing supersedes. Where taking a slice out would leave a hole, the object cannot have been part of the
topic and is left out. A segment that was made of others names them (`metadata/topic_map/merging.py`): what they hold
of its entries is superseded too.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from offloaderd.core.model import OffloadMethod, Position
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.upkeep.rebuild.known import Failure, Known, Problem


def superseded(
    known: Sequence[Known], prefer: Collection[UUID], problems: list[Problem]
) -> tuple[list[Known], list[Known]]:
    """Take out of streaming segments what lies in objects of whole ledgers; returns what is left, and what is not.

    A preferred segment keeps all of its slices. Of two objects of one ledger none supersedes anything.
    """
    wholes: dict[int, list[Known]] = {}
    for one in known:
        if one.segment.method is OffloadMethod.LEDGER_BASED:
            wholes.setdefault(one.segment.begin.ledger_id, []).append(one)
    sole = {ledger_id: found[0] for ledger_id, found in wholes.items() if len(found) == 1}
    kept: list[Known] = []
    replaced: list[Known] = []
    left_out: set[UUID] = set()
    for one in known:
        segment = one.segment
        gone = {part.ledger_id for part in segment.slices} & sole.keys()
        if segment.method is OffloadMethod.LEDGER_BASED or segment.segment_id in prefer or not gone:
            kept.append(one)
            continue
        rest = _run_without(segment, gone)
        held = {part.ledger_id for part in rest}
        left_out |= {sole[ledger_id].segment.segment_id for ledger_id in gone & held}
        if rest:
            kept.append(replace(one, segment=replace(segment, slices=rest)))
        else:
            replaced.append(one)
        if gone - held:
            problems.append(_replaced(segment, sorted(gone - held), sole))
    return sorted((one for one in kept if one.segment.segment_id not in left_out), key=place_of), replaced


def merged(
    known: Sequence[Known], prefer: Collection[UUID], problems: list[Problem]
) -> tuple[list[Known], list[Known]]:
    """Take out of segments what was made of them; returns what is left, and what is not. A preferred one stays."""
    makers: dict[UUID, list[CommittedSegment]] = {}
    for one in known:
        for replaced_id in one.replaces if one.segment.method is OffloadMethod.STREAMING else ():
            makers.setdefault(replaced_id, []).append(one.segment)
    kept: list[Known] = []
    replaced: list[Known] = []
    for one in known:
        segment, made = one.segment, makers.get(one.segment.segment_id, [])
        gone = {part.ledger_id for part in segment.slices if any(_holds(other, part) for other in made)}
        rest = _run_without(segment, gone)
        if segment.segment_id in prefer or len(rest) == len(segment.slices):
            kept.append(one)
            continue
        if rest:
            kept.append(replace(one, segment=replace(segment, slices=rest)))
        else:
            replaced.append(one)
        text = f"segment {segment.segment_id} ({segment.range}) holds entries that were put into another"
        ids = (segment.segment_id, *(other.segment_id for other in made))
        todo = "nothing: the other was made of it; --prefer the segment to keep it as it is"
        problems.append(Problem(kind=Failure.SUPERSEDED, text=text, segments=ids, what_to_do=todo))
    return sorted(kept, key=place_of), replaced


def _holds(segment: CommittedSegment, part: LedgerSlice) -> bool:
    """Whether all entries of a slice lie in a segment."""
    return segment.holds(part.range.begin) and segment.holds(part.range.end)


def _run_without(segment: CommittedSegment, gone: Collection[int]) -> tuple[LedgerSlice, ...]:
    """Return what is left of a segment from whose front and end ledgers are taken as long as they are in `gone`."""
    slices = list(segment.slices)
    while slices and slices[0].ledger_id in gone:
        slices.pop(0)
    while slices and slices[-1].ledger_id in gone:
        slices.pop()
    return tuple(slices)


def _replaced(segment: CommittedSegment, ledgers: Sequence[int], sole: Mapping[int, Known]) -> Problem:
    objects = tuple(sole[ledger_id].segment.segment_id for ledger_id in ledgers)
    return Problem(
        kind=Failure.SUPERSEDED,
        text=f"segment {segment.segment_id} ({segment.range}) holds entries of ledgers that have objects of their own: "
        + ", ".join(f"{ledger_id} in {one}" for ledger_id, one in zip(ledgers, objects, strict=True)),
        segments=(segment.segment_id, *objects),
        what_to_do="nothing: the objects are what they were rewritten as; --prefer the segment to keep its slices",
    )


def place_of(one: Known) -> tuple[Position, Position, UUID]:
    """Return what segments are put in order by."""
    return one.segment.begin, one.segment.end, one.segment.segment_id
