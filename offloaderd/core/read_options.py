"""Options of reads and seeks, and the tiers that answer them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import PolicyValue

DISORDER_MS = 2_000
"""Assumed limit of disorder where no manifest has the range of times: an entry that was written this long before
another one has an earlier time. Several times the difference of synchronised clocks."""

GOAL_MAX = 2**64 - 1


class ReadPriority(PolicyValue):
    """The tier that is read first if both have an entry (PIP-73, spelled as in Pulsar's code)."""

    TIERED_STORAGE_FIRST = "tiered-storage-first"
    BOOKKEEPER_FIRST = "bookkeeper-first"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a value; the PIP's own `tiered-first` is accepted. Raises InvalidInput."""
        return super().parse("tiered-storage-first" if text == "tiered-first" else text)


class Tier(StrEnum):
    """Origin of entries in metrics and logs."""

    BUFFER = "buffer"
    SOURCE = "source"
    OBJECTS = "objects"


class Transactions(StrEnum):
    """The messages that a read returns."""

    COMMITTED = "committed"
    """Those that consumers receive."""
    ALL = "all"
    """All of them and the markers, with the outcome of their transactions."""


class SeekKind(StrEnum):
    """The property by which a seek finds entries."""

    TIME = "time"
    """Milliseconds since 1970, see `format.pulsar.entry_time`."""
    INDEX = "index"
    """Number of a message in the topic (PIP-70)."""
    SEQUENCE = "sequence"
    """Number of an entry in the topic (FORMAT.md, 4.4)."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The first entry, in the order of the log, whose time, message index or sequence number is at least `value`.

    An entry's message index is that of its last message, so the entry with message `value` is found.
    """

    kind: SeekKind
    value: int

    def checked(self) -> "Goal":
        """Return the goal if the number is valid. Raises InvalidInput."""
        if not 0 <= self.value <= GOAL_MAX:
            raise InvalidInput(f"cannot seek {self.kind} {self.value}", hint="numbers are 0 to 2^64-1")
        return self

    @property
    def surely_before(self) -> int:
        """If an entry of an unsurveyed range has a value below this, neither it nor an earlier entry is the answer."""
        return self.value - DISORDER_MS if self.kind is SeekKind.TIME else self.value
