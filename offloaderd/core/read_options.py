"""How a read or a seek is asked for: what a client says, and what it is answered by."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import PolicyValue

DISORDER_MS = 2_000
"""Where no manifest says between which times entries lie, no entry may be written this long, or longer, before another
one that has an earlier time: several times what clocks that are kept right differ by."""

GOAL_MAX = 2**64 - 1


class ReadPriority(PolicyValue):
    """Which tier is asked first when both hold an entry (PIP-73, as Pulsar's code spells it)."""

    TIERED_STORAGE_FIRST = "tiered-storage-first"
    BOOKKEEPER_FIRST = "bookkeeper-first"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a policy value; the PIP's own `tiered-first` is accepted. Raises InvalidInput."""
        return super().parse("tiered-storage-first" if text == "tiered-first" else text)


class Tier(StrEnum):
    """Where entries come from, as metrics and logs name it."""

    BUFFER = "buffer"
    SOURCE = "source"
    OBJECTS = "objects"


class Transactions(StrEnum):
    """Which messages a read gives."""

    COMMITTED = "committed"
    """Those that a consumer is given."""
    ALL = "all"
    """All of them and the markers, with what became of their transactions."""


class SeekKind(StrEnum):
    """What entries are looked for by."""

    TIME = "time"
    """Milliseconds since 1970, see `format.entry_time`."""
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
        """Return itself if the number can be one; raises InvalidInput."""
        if not 0 <= self.value <= GOAL_MAX:
            raise InvalidInput(f"cannot seek {self.kind} {self.value}", hint="numbers are 0 to 2^64-1")
        return self

    @property
    def surely_before(self) -> int:
        """Behind an entry that is less than this, in what is not surveyed, and before it, nothing is the answer."""
        return self.value - DISORDER_MS if self.kind is SeekKind.TIME else self.value
