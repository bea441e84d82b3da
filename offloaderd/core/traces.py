"""Traces of segments and reads: the port, and one that records nothing (OpenTelemetry: daemon/telemetry.py).

A trace is one owner's work on one segment; its steps are open, part, seal, complete, verify and commit. Facts are
names, positions, counts and sizes, and never contents of entries, error messages or secrets.
"""

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Protocol, Self
from uuid import UUID

Fact = str | int | float | bool

NO_STEP = nullcontext()


class SegmentTrace(Protocol):
    """The trace of one segment, from entering it to leaving it; an exception ends it as well."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; without an error, with the facts of the last `say`."""

    def step(self, name: str, **facts: Fact) -> AbstractContextManager[None]:
        """Return a step's context manager; steps may overlap. An exception marks the step as failed."""

    def say(self, **facts: Fact) -> None:
        """Record facts of the segment."""


class Traces(Protocol):
    """Factory of traces."""

    def segment(self, segment_id: UUID, **facts: Fact) -> SegmentTrace:
        """Return the trace for the work on a segment."""

    def exemplar(self, segment_id: UUID) -> dict[str, str]:
        """Return the labels that lead from an observed value to a segment, and to its trace where it has one."""


class NoTrace:
    """Traces that record nothing."""

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def step(self, name: str, **facts: Fact) -> AbstractContextManager[None]:
        """Return a context manager without effect."""
        return NO_STEP

    def say(self, **facts: Fact) -> None:
        """Do nothing."""

    def segment(self, segment_id: UUID, **facts: Fact) -> SegmentTrace:
        """Return this trace."""
        return self

    def exemplar(self, segment_id: UUID) -> dict[str, str]:
        """Return the segment's id alone."""
        return {"segment_id": str(segment_id)}


NO_TRACES = NoTrace()
