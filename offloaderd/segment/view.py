"""What a segment's writer may know of its topic: a look that does not change while it is decided by."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from offloaderd.core.model import START, LedgerInfo, OffloadMethod, Position
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.segment.roll import RollPolicy


class Requested(NamedTuple):
    """What somebody wants of a topic at the moment."""

    stopping: bool = False
    """Whether its owner is to leave it; what is not stored is left to the next one."""
    seal_to: Position | None = None
    """The entry up to which everything is to be committed soon."""
    memory: bool = False
    """Whether memory is short, which a commit may free."""


_ANY = RollPolicy(segment_bytes_max=0, segment_age_max_s=0.0)
_NO_LEDGERS = LedgerChain(START, end=None)


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as it is when the writer looks at it; what is behind its references may go on meanwhile."""

    requested: Requested
    policy: RollPolicy = _ANY
    chain: LedgerChain = _NO_LEDGERS
    """What is known of its ledgers. Only read by whoever has a view."""
    adoptable: Collection[int] = ()
    """The ledgers that brokers have offloaded themselves, and that are to be adopted."""
    whole_ledgers: bool = False
    """Whether a ledger can be offloaded as a whole."""
    more_may_come: bool = False
    """Whether there are, or may be, entries behind the cursor that were there before this owner."""
    first: Position | None = None
    """The next entry, if it is in memory."""
    buffer_bytes: int = 0
    """Memory that its entries take."""
    may_stop: bool = False
    """Whether stopping is asked for, and loses nothing that was accepted."""
    cursor: Position = START
    """Newest entry that is taken."""
    attempt: Attempt | None = None
    """The record of the open segment, or of what an earlier owner left."""
    settled: bool = True
    """Whether it is known how far the latter is."""
    left_is_lost: bool = False
    """Whether the source has lost its first entry."""
    rereadable: bool = True
    """Whether entries can be read again."""
    history_waits: bool = False
    """Whether live segments wait for history."""
    offloaded: Position | None = None
    """Up to where all is offloaded."""
    whole_before: int | None = None
    """The ledger that the last segment holds as a whole."""
    end_is_unrecorded: bool = False
    """Whether the end of the ledger in which the offloading stands is known and not recorded."""
    to_adopt: LedgerInfo | None = None
    """The ledger that comes next and can be adopted."""
    wall_ms: int = 0
    """What time it is."""

    @property
    def goes_by_ledgers(self) -> bool:
        """Whether ledgers are to be offloaded as a whole, and can be."""
        return self.policy.method is OffloadMethod.LEDGER_BASED and self.whole_ledgers


class Views(Protocol):
    """Who makes views."""

    def at(self, cursor: Position) -> TopicView:
        """Return the topic as it is now, for a writer that has taken all entries up to `cursor`."""
        ...


class NoViews:
    """Of a segment that depends on nothing but its entries."""

    _view = TopicView(Requested())

    def at(self, cursor: Position) -> TopicView:
        """Return the same always."""
        return self._view


NO_VIEWS = NoViews()
