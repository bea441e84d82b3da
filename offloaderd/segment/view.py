"""A frozen view of a topic, by which its segment's writer and its chooser decide."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from offloaderd.core.model import START, LedgerInfo, OffloadMethod, Position
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.segment.roll import RollPolicy


class Requested(NamedTuple):
    """Requests to a topic that are open now."""

    stopping: bool = False
    """Whether its owner is to release it; the next owner stores the rest."""
    seal_to: Position | None = None
    """Everything up to this entry is to be committed soon."""
    memory: bool = False
    """Whether memory is short that a commit may free."""


_ANY = RollPolicy(segment_bytes_max=0, segment_age_max_s=0.0)
_NO_LEDGERS = LedgerChain(START, end=None)


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic at one moment; the objects that it refers to may change later."""

    requested: Requested
    policy: RollPolicy = _ANY
    chain: LedgerChain = _NO_LEDGERS
    """Known ledgers; read-only here."""
    adoptable: Collection[int] = ()
    """Ledgers that brokers have offloaded and that are to be adopted."""
    whole_ledgers: bool = False
    """Whether a ledger can be offloaded as a whole."""
    more_may_come: bool = False
    """Whether there may be entries behind the cursor that are older than this claim."""
    first: Position | None = None
    """The next entry, if it is in memory."""
    buffer_bytes: int = 0
    """Memory of its entries."""
    may_stop: bool = False
    """Whether a stop is requested and loses nothing that was accepted."""
    cursor: Position = START
    """Newest entry in the open segment, or committed."""
    attempt: Attempt | None = None
    """Record of the open segment, or of the attempt that an earlier owner left."""
    settled: bool = True
    """Whether the state of that attempt in the bucket is known."""
    left_is_lost: bool = False
    """Whether the source has lost the first entry of that attempt."""
    rereadable: bool = True
    """Whether entries can be read again."""
    history_waits: bool = False
    """Whether live segments wait until history is done."""
    offloaded: Position | None = None
    """The offloaded position."""
    whole_before: int | None = None
    """The ledger that the last segment holds whole."""
    end_is_unrecorded: bool = False
    """Whether the end of the ledger at the offloaded position is known and not recorded."""
    to_adopt: LedgerInfo | None = None
    """The next ledger, if it can be adopted."""
    wall_ms: int = 0
    """Wall time."""

    @property
    def goes_by_ledgers(self) -> bool:
        """Whether ledgers are offloaded whole: by the policy, and possible here."""
        return self.policy.method is OffloadMethod.LEDGER_BASED and self.whole_ledgers


Views = Callable[[Position], TopicView]
"""Returns the topic as it is now, for a writer that has taken all entries up to a position."""

NO_VIEW = TopicView(Requested())
"""For a segment that depends on nothing but its entries."""
