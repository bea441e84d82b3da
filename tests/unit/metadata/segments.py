"""Segments as the map has them, made of slices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from offloaderd.metadata import paths
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.pieces import StoredContext
from offloaderd.metadata.port import Create, Delete, Replace, Versioned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offloaderd.core.model import TopicName
    from offloaderd.metadata.port import Step


def made(number: int, *slices: tuple[int, int, int]) -> CommittedSegment:
    """A segment of (ledger, first, last) slices; a payload byte an entry."""
    return CommittedSegment(
        segment_id=UUID(int=number << 64 | 0xF << 60 | number),
        slices=tuple(LedgerSlice(ledger, first, last, last - first + 1) for ledger, first, last in slices),
        object_bytes=1000 + number,
        assigned_ms=number,
        offloaded_ms=number + 1,
        bucket="bucket",
        prefix="p/",
    )


def carry_out(nodes: dict[str, Versioned], steps: Sequence[Step]) -> None:
    """Do what a store does with the steps of a transaction."""
    for step in steps:
        known = nodes.pop(step.path, None)
        if isinstance(step, Create):
            assert known is None
            nodes[step.path] = Versioned(step.value, 0)
        else:
            assert known is not None
            assert isinstance(step, Replace | Delete)
            assert step.version in {None, known.version}
        if isinstance(step, Delete):
            assert not [path for path in nodes if path.startswith(f"{step.path}/")]
        elif known is not None and isinstance(step, Replace):
            nodes[step.path] = Versioned(step.value, known.version + 1)


def contexts_of(topic: TopicName, nodes: Mapping[str, Versioned]) -> dict[int, StoredContext]:
    """The ledgers' contexts among nodes, as a reader finds them."""
    found: dict[int, StoredContext] = {}
    folder = f"{paths.ledgers(topic)}/"
    for path in sorted(path for path in nodes if path.startswith(folder)):
        ledger_id, *number = map(int, path[len(folder) :].split("/"))
        if number:
            known = found[ledger_id]
            found[ledger_id] = replace(known, pieces={**known.pieces, number[0]: nodes[path]})
        else:
            found[ledger_id] = StoredContext(nodes[path].value, nodes[path].version)
    return found
