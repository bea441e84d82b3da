"""Verification of one topic's committed segments on request: the map against the bucket."""

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from offloaderd.core.errors import Transient
from offloaderd.core.model import TopicName
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.objects.retrying import RetryingReader
from offloaderd.read.ports import Maps
from offloaderd.upkeep.rebuild.plan import Known
from offloaderd.upkeep.rebuild.rebuild import known_of
from offloaderd.upkeep.stored import Site
from offloaderd.upkeep.verify.cluster import between
from offloaderd.upkeep.verify.flaws import Flaw, Kind, Level, first_damage, unreachable
from offloaderd.upkeep.verify.segment import Target, check_inside, check_tables

CALLS_BYTES = 16 * 1024 * 1024
"""Memory for blocks of all calls that verify or explain; a larger block is read alone."""
IN_A_ROW_MAX = 3
"""Consecutive segments that could not be read before the verification ends: the store does not answer then."""


@dataclass(slots=True, kw_only=True)
class SegmentReport:
    """Result of one segment, which is `number` of `of`."""

    segment: CommittedSegment
    number: int
    of: int
    read_bytes: int = 0
    flaws: list[Flaw] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Between:
    """Flaws between segments, and the totals."""

    segments: int
    read_bytes: int
    flaws: list[Flaw]


class TopicVerifier:
    """Verifies topics in all sites of a cluster; `reader` makes the reader of one verification."""

    def __init__(
        self,
        maps: Maps,
        reader: Callable[[], RetryingReader],
        sites: Sequence[Site],
        damaged: Callable[[TopicName, CommittedSegment, str], None] = lambda *_: None,
    ) -> None:
        """`damaged` is called with segments that are not what was committed."""
        self._damaged = damaged
        self._maps = maps
        self._reader = reader
        self._cluster = sites[0].cluster
        self._buckets = {site.bucket for site in sites}

    async def run(self, topic: TopicName, level: Level) -> AsyncGenerator[SegmentReport | Between, None]:
        """Yield a report of each segment, oldest first, then the flaws between them.

        A segment that is deleted meanwhile is left out. One that cannot be read is reported, and the end raises
        Transient; several in a row end the verification at once. Raises as the metadata store.
        """
        reader = self._reader()
        topic_map = await self._maps.topic_map(topic)
        knowns: list[Known] = []
        away: list[Flaw] = []
        in_a_row = 0
        for number, segment in enumerate(topic_map.segments, start=1):
            before = reader.read_bytes
            report = SegmentReport(segment=segment, number=number, of=len(topic_map.segments))
            try:
                report.flaws, known = await check_committed(
                    reader, topic, segment, level, cluster=self._cluster, buckets=self._buckets
                )
                in_a_row = 0
            except Transient as error:
                report.flaws, known = [unreachable(error, segment.keys, topic=topic, committed=segment)], None
                away += report.flaws
                in_a_row += 1
            if report.flaws:
                now = await self._maps.topic_map(topic)
                if segment.segment_id not in {one.segment_id for one in now.segments}:
                    continue
            if known is not None:
                knowns.append(known)
            if bad := first_damage(report.flaws):
                self._damaged(topic, segment, str(bad))
            report.read_bytes = reader.read_bytes - before
            yield report
            if in_a_row == IN_A_ROW_MAX:
                break
        whole = len(knowns) == len(topic_map.segments)
        flaws = between(knowns, topic_map) if whole else []
        yield Between(segments=len(topic_map.segments), read_bytes=reader.read_bytes, flaws=flaws)
        if away:
            rest = "the rest was not tried" if in_a_row == IN_A_ROW_MAX else "the others were"
            raise Transient(
                f"{len(away)} of {len(topic_map.segments)} segments of {topic} could not be looked at, {rest}; "
                f"the last: {away[-1]}",
                hint=away[-1].what_to_do,
            )


async def check_committed(
    reader: RetryingReader,
    topic: TopicName,
    segment: CommittedSegment,
    level: Level,
    *,
    cluster: str,
    buckets: Collection[str],
) -> tuple[list[Flaw], Known | None]:
    """Return the flaws of one committed segment, and its manifest. Raises as `run`."""
    target = Target.of(segment, topic, cluster)
    if segment.bucket not in buckets:
        said = f"in bucket {segment.bucket!r}"
        return [Flaw(kind=Kind.ELSEWHERE, key=target.keys.data, found=said, segment_id=segment.segment_id)], None
    tables = await check_tables(reader, target)
    flaws = list(tables.flaws)
    async with aclosing(check_inside(reader, target, tables, level)) as steps:
        async for _, found in steps:
            flaws += found
    if tables.manifest is None:
        return flaws, None
    return flaws, known_of(tables.manifest, topic, bucket=segment.bucket, prefix=segment.prefix)
