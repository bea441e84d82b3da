"""A topic's planned history in the store: the ranges in their nodes, and the steps that change one.

Writers are fenced: the owner by its epoch, a job by its lease in the plan. Each transaction checks that node's version.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from offloaderd.core.aio import each
from offloaderd.core.errors import NotFound
from offloaderd.core.model import Position, TopicName
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.port import Create, MetadataStore, Replace, Step, Versioned
from offloaderd.metadata.records import history as history_record
from offloaderd.metadata.records.history import RANGES_PER_NODE, HistoryRange, RangeState


@dataclass(frozen=True, slots=True)
class HistoryRanges:
    """All ranges of a topic's history, ascending, and their nodes' versions."""

    topic: TopicName
    ranges: tuple[HistoryRange, ...] = ()
    versions: tuple[int, ...] = ()

    @classmethod
    def split(cls, topic: TopicName, ranges: Sequence[HistoryRange]) -> "HistoryRanges":
        """Return ranges that are not stored yet."""
        return cls(topic, tuple(ranges), (0,) * -(-len(ranges) // RANGES_PER_NODE))

    def creations(self) -> Iterator[Create]:
        """Yield the steps that create the nodes; each fits a transaction of its own."""
        for number in range(len(self.versions)):
            yield Create(
                paths.history_range_node(self.topic, number), history_record.encode_ranges(self.on_node(number))
            )

    def at(self, position: Position) -> int | None:
        """Return the index of the first range that ends at or behind a position; None if there is none."""
        index = bisect_left(self.ranges, position, key=lambda one: one.end)
        return index if index < len(self.ranges) else None

    def with_ranges(self, changed: Mapping[int, HistoryRange]) -> "tuple[list[Step], HistoryRanges]":
        """Return the steps that change ranges, one for each node, and the ranges afterwards."""
        ranges, versions = list(self.ranges), list(self.versions)
        for index, one in changed.items():
            ranges[index] = one
        touched = sorted({index // RANGES_PER_NODE for index in changed})
        for number in touched:
            versions[number] += 1
        after = replace(self, ranges=tuple(ranges), versions=tuple(versions))
        paths_of = {number: paths.history_range_node(self.topic, number) for number in touched}
        return [
            Replace(path, history_record.encode_ranges(after.on_node(number)), self.versions[number])
            for number, path in paths_of.items()
        ], after

    def behind(self, position: Position) -> list[int]:
        """Return the indices of ranges that end at or before a position and are not marked done."""
        return [n for n, one in enumerate(self.ranges) if one.end <= position and one.state is not RangeState.DONE]

    def counts(self) -> dict[RangeState, int]:
        """Return the number of ranges in each state."""
        found = Counter(one.state for one in self.ranges)
        return {state: found[state] for state in RangeState}

    def on_node(self, number: int) -> tuple[HistoryRange, ...]:
        """Return the ranges of one node."""
        return self.ranges[number * RANGES_PER_NODE : (number + 1) * RANGES_PER_NODE]


async def load(store: MetadataStore, topic: TopicName, count: int) -> HistoryRanges:
    """Read a plan's `count` ranges. Raises CorruptData, NotFound when some are missing, Transient."""

    async def read(number: int) -> Versioned:
        path = paths.history_range_node(topic, number)
        found = await node(store, path)
        if found is None:
            raise NotFound(f"{path} is missing", hint="delete the topic's history/plan node to have it planned again")
        return found

    nodes = await each(range(-(-count // RANGES_PER_NODE)), read)
    ranges: list[HistoryRange] = []
    for number, found in enumerate(nodes):
        ranges += history_record.decode_ranges(found.value, path=paths.history_range_node(topic, number))
    if len(ranges) != count:
        raise NotFound(f"{topic} has {len(ranges)} of {count} ranges of history", hint="plan it again")
    return HistoryRanges(topic, tuple(ranges), tuple(found.version for found in nodes))
