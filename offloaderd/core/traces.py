"""Traces of segments and reads: the port, and one that records nothing (OpenTelemetry: daemon/telemetry.py).

A trace is one owner's work on one segment; its steps are open, part, seal, complete, verify and commit. Facts are
names, positions, counts and sizes: never what is in an entry, never a message of an error, never a secret.
"""

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Protocol, Self
from uuid import UUID

Fact = str | int | float | bool

NO_STEP = nullcontext()


class SegmentTrace(Protocol):
    """The trace of one segment, from entering it to leaving it; an exception that passes is its end."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; without an error it is as the last `say` has it."""

    def step(self, name: str, **facts: Fact) -> AbstractContextManager[None]:
        """Return what a step is entered with, any number side by side; an exception that passes makes it a failure."""

    def say(self, **facts: Fact) -> None:
        """Note facts of the segment."""


class Traces(Protocol):
    """Where segments are traced."""

    def segment(self, segment_id: UUID, **facts: Fact) -> SegmentTrace:
        """Return the trace of a segment that is worked on from now on."""


class NoTrace:
    """Traces that record nothing."""

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def step(self, name: str, **facts: Fact) -> AbstractContextManager[None]:
        """Return what does nothing, the same one always."""
        return NO_STEP

    def say(self, **facts: Fact) -> None:
        """Do nothing."""

    def segment(self, segment_id: UUID, **facts: Fact) -> SegmentTrace:
        """Return this."""
        return self


NO_TRACES = NoTrace()
