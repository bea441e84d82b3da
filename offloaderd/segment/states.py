"""The states of a segment and the table of their transitions, which code, log, API and documentation use.

A state follows from the attempt's record (`state_of`). COMPLETED and COMMITTED are in no record: the objects prove the
one, and the attempt ends with the other. A transition writes its record before what depends on it.
"""

from enum import StrEnum
from typing import NamedTuple

from offloaderd.metadata.records.attempt import Attempt, AttemptStatus


class SegmentState(StrEnum):
    """The state of a segment."""

    ASSIGNED = "assigned"
    """Its attempt is recorded: id, begin and layout."""
    UPLOADING = "uploading"
    """It takes entries; once it has a full part, the multipart upload is recorded, and the parts that are stored."""
    SEALED = "sealed"
    """Its end is recorded, with all that its manifest will hold."""
    COMPLETED = "completed"
    """The data object and the index are in the bucket."""
    VERIFIED = "verified"
    """All three objects read back as they were sent."""
    COMMITTED = "committed"
    """The topic's map has it; the attempt is deleted."""
    FAILED = "failed"
    """Its objects are on the trash list; its entries begin another attempt."""


class Transition(NamedTuple):
    """A transition, and its name in the documentation."""

    before: SegmentState
    after: SegmentState
    event: str


_OPEN = (
    SegmentState.ASSIGNED,
    SegmentState.UPLOADING,
    SegmentState.SEALED,
    SegmentState.COMPLETED,
    SegmentState.VERIFIED,
)

TRANSITIONS: tuple[Transition, ...] = (
    Transition(SegmentState.ASSIGNED, SegmentState.UPLOADING, "entries taken"),
    Transition(SegmentState.UPLOADING, SegmentState.SEALED, "end recorded"),
    Transition(SegmentState.SEALED, SegmentState.SEALED, "source lost the rest"),
    Transition(SegmentState.SEALED, SegmentState.COMPLETED, "objects completed"),
    Transition(SegmentState.COMPLETED, SegmentState.VERIFIED, "manifest read back"),
    Transition(SegmentState.VERIFIED, SegmentState.COMMITTED, "committed"),
    *(Transition(before, SegmentState.VERIFIED, "finished objects found") for before in _OPEN[:3]),
    *(Transition(before, SegmentState.FAILED, "given up") for before in _OPEN),
)

_ALLOWED = {(one.before, one.after) for one in TRANSITIONS}


def follow(before: SegmentState, after: SegmentState) -> SegmentState:
    """Return the state after a transition. Raises AssertionError for one that is not in the table: a defect."""
    if (before, after) not in _ALLOWED:
        raise AssertionError(f"a segment that is {before} cannot become {after}")
    return after


def state_of(attempt: Attempt) -> SegmentState:
    """Return the state that an attempt's record shows.

    Finished objects that were found under its key, or an executor's record that they are stored, are VERIFIED.
    """
    if attempt.status is AttemptStatus.FAILED:
        return SegmentState.FAILED
    if attempt.proven or attempt.status is AttemptStatus.OFFLOADED:
        return SegmentState.VERIFIED
    if attempt.seal is not None:
        return SegmentState.SEALED
    return SegmentState.UPLOADING if attempt.upload_id else SegmentState.ASSIGNED


def diagram() -> str:
    """Return the table as a diagram in the language of mermaid."""
    lines = [f"    {one.before} --> {one.after}: {one.event}" for one in TRANSITIONS]
    ends = [f"    {one} --> [*]" for one in (SegmentState.COMMITTED, SegmentState.FAILED)]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {SegmentState.ASSIGNED}", *lines, *ends])
