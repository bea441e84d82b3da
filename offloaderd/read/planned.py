"""The plan of a direct read as a message, from the daemon that makes it to the client that reads the bucket."""

from collections.abc import Sequence
from uuid import UUID

from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.model import OffloadMethod
from offloaderd.format.parsing import filled
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.protocol.v1 import common_pb2
from offloaderd.protocol.v1 import read_pb2 as pb
from offloaderd.read.plan import Run


def plan_message(runs: Sequence[Run], *, complete: bool) -> pb.PlanReadResponse:
    """Return the answer to PlanRead.

    Neighbouring runs of a segment become one, over several ledgers; so do those that only Read gives, of a ledger.
    """
    answer = pb.PlanReadResponse(complete=complete)
    numbers: dict[UUID, int] = {}
    before: int | None = None
    for run in runs:
        first = common_pb2.Position(ledger_id=run.ledger_id, entry_id=run.first_entry_id)
        last = common_pb2.Position(ledger_id=run.ledger_id, entry_id=run.last_entry_id)
        number = None
        if run.segment is not None:
            number = numbers.setdefault(run.segment.segment_id, len(numbers))
            if number == len(answer.segments):
                answer.segments.append(_stored(run.segment))
        newest = answer.runs[-1] if answer.runs else None
        if newest and number == before and (number is not None or newest.last.ledger_id == run.ledger_id):
            newest.last.CopyFrom(last)
        else:
            answer.runs.append(pb.PlannedRun(first=first, last=last, segment=number))
        before = number
    return answer


def _stored(segment: CommittedSegment) -> pb.StoredSegment:
    mirror = None if segment.mirror is None else pb.StoredCopy(bucket=segment.mirror[0], prefix=segment.mirror[1])
    return filled(pb.StoredSegment, segment, writer=segment.driver, mirror=mirror)


def committed(stored: pb.StoredSegment, *, where: str) -> CommittedSegment:
    """Return the segment of a plan, without what only a map needs. `where` is for errors; raises CorruptData."""
    try:
        return CommittedSegment(
            segment_id=UUID(stored.segment_id),
            slices=tuple(
                LedgerSlice(one.ledger_id, one.first_entry_id, one.last_entry_id, one.payload_bytes)
                for one in stored.slices
            ),
            object_bytes=stored.object_bytes,
            assigned_ms=0,
            offloaded_ms=0,
            bucket=stored.bucket,
            prefix=stored.prefix,
            method=OffloadMethod.parse(stored.method),
            driver=stored.writer,
            mirror=(stored.mirror.bucket, stored.mirror.prefix) if stored.HasField("mirror") else None,
        ).checked()
    except (ValueError, InvalidInput) as error:
        raise CorruptData(key=where, offset=0, expected="a plan with segments", found=str(error)) from None
