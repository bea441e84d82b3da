"""What the source needs of its surroundings: nodes of ZooKeeper to read, and bookies to ask.

Neither has a method that could change anything outside: what is written here can only read.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from offloaderd.metadata.port import Versioned


class Znodes(Protocol):
    """Read access to the cluster's ZooKeeper, from its root. Every method may raise Transient, Denied and Closed."""

    async def get(self, path: str) -> Versioned:
        """Return a node's value and version. Raises NotFound."""
        ...

    async def children(self, path: str) -> Sequence[str]:
        """Return the sorted names below a node; a node that does not exist has none."""
        ...

    async def arm(self, path: str, fired: Callable[[], None]) -> None:
        """Have `fired` called once the node may have been made, replaced or deleted after this returned.

        It may be called again, and need not be: arm it anew after each call, before anything is read. A change of
        session counts as one. It waits for a session as long as it takes.
        """
        ...

    def disarm(self, path: str, fired: Callable[[], None]) -> None:
        """Call it no more; one that is not armed is no error."""
        ...

    async def sync(self, path: str) -> None:
        """Catch up with the leader: what is absent afterwards was absent at this call."""
        ...


class LastKnown(NamedTuple):
    """What one bookie knows of the end of a ledger.

    `stored` is the last entry that it holds, confirmed or not, with header and digest still to be checked; None when it
    holds none. `max_lac` is the greatest LAC that it heard of, by entries or explicitly, not covered by any digest; -1
    for none.
    """

    stored: bytes | None
    max_lac: int


class Bookies(Protocol):
    """All bookies of a cluster, by id.

    Every request has a deadline and waits for its turn in the bookie's window. It raises what
    `status.reaction_to` knows: NotHere, Throttled, BadAnswer, Unsupported, Denied, and Transient for a bookie that is
    down, unknown, away or silent. Cancelled, a request leaves nothing behind.
    """

    def ordered(self, bookie_ids: Sequence[str]) -> list[str]:
        """Return the same bookies in their order, those that failed lately last."""
        ...

    def batches(self, bookie_id: str) -> bool:
        """Whether the bookie may know batch reads; False once it was seen not to."""
        ...

    def long_polls(self, bookie_id: str) -> bool:
        """Whether the bookie may know long polls; False once it was seen not to."""
        ...

    async def read(self, bookie_id: str, ledger_id: int, entry_id: int) -> bytes:
        """Return one entry as it is stored. Two reads of one entry at a time share one request."""
        ...

    async def read_batch(
        self, bookie_id: str, ledger_id: int, first_entry_id: int, *, count_max: int, bytes_max: int
    ) -> list[bytes]:
        """Return stored entries from `first_entry_id` on, at least one; fewer than asked for means nothing.

        `count_max` has to stay within the LAC. Raises Unsupported when the bookie is too old for it.
        """
        ...

    async def last_known(self, bookie_id: str, ledger_id: int) -> LastKnown:
        """Return the bookie's end of a ledger; a bookie that has nothing of it knows nothing, which is no error."""
        ...

    async def newer(self, bookie_id: str, ledger_id: int, previous_lac: int, *, seconds: float) -> asyncio.Future[int]:
        """Ask for the bookie's greatest LAC once it is above `previous_lac`, or after `seconds` whatever it is.

        Returns when the question is out; its future raises what the call does, and may be cancelled. It takes no part
        in windows, and may be told at any time of a LAC that is not above `previous_lac`: a bookie does not wait for
        ledgers that are fenced, or that it does not know (-1). Raises Unsupported by a bookie that knows no long polls;
        one that hangs is TimedOut long before `seconds` are over.
        """
        ...
