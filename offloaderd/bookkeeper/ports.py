"""The ports of the ledger source: nodes of ZooKeeper to read, and bookies.

Neither has a method that could change anything outside.
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

        It may be called more than once: arm it again after each call, before a read. A change of session counts as a
        change. Waits for a session without limit.
        """
        ...

    def disarm(self, path: str, fired: Callable[[], None]) -> None:
        """Stop the calls; one that is not armed is no error."""
        ...

    async def sync(self, path: str) -> None:
        """Catch up with the leader: what is absent afterwards was absent at this call."""
        ...


class LastKnown(NamedTuple):
    """The end of a ledger on one bookie.

    `stored` is its last entry, confirmed or not, with header and digest not yet checked; None without one. `max_lac` is
    the greatest LAC that it got, by entries or explicitly, not covered by any digest; -1 for none.
    """

    stored: bytes | None
    max_lac: int


class Bookies(Protocol):
    """All bookies of a cluster, by id.

    Every request has a deadline and waits for a slot in the bookie's window. It raises NotHere, Throttled, BadAnswer,
    Unsupported, Denied, and Transient for a bookie that is down, unknown or silent. Cancelled, it has no effect.
    """

    def ordered(self, bookie_ids: Sequence[str]) -> list[str]:
        """Return the same bookies in their order, those that failed lately last."""
        ...

    def batches(self, bookie_id: str) -> bool:
        """Whether the bookie may know batch reads; False once it was seen not to."""
        ...

    def long_polls(self, bookie_id: str) -> int:
        """Return how many more long polls the bookie may take: 0 at the limit, or once it was seen not to know them."""
        ...

    async def read(self, bookie_id: str, ledger_id: int, entry_id: int) -> bytes:
        """Return one entry as it is stored. Concurrent reads of one entry share a request."""
        ...

    async def read_batch(
        self, bookie_id: str, ledger_id: int, first_entry_id: int, *, count_max: int, bytes_max: int
    ) -> list[bytes]:
        """Return stored entries from `first_entry_id` on, at least one; fewer than requested means nothing.

        `count_max` has to stay within the LAC. Raises Unsupported when the bookie is too old for it.
        """
        ...

    async def last_known(self, bookie_id: str, ledger_id: int) -> LastKnown:
        """Return the bookie's end of a ledger; an empty one for a ledger that it does not hold."""
        ...

    async def newer(self, bookie_id: str, ledger_id: int, previous_lac: int, *, seconds: float) -> asyncio.Future[int]:
        """Ask for the bookie's greatest LAC once it is above `previous_lac`, or after `seconds` whatever it is.

        Returns when the request is sent; its future raises what the call does, and may be cancelled. It takes no slot
        of a window, and may return a LAC that is not above `previous_lac` at any time: a bookie does not wait for
        ledgers that it does not know (-1). A fence ends no long poll: real bookies wait as before, others may answer at
        once. Raises Unsupported by a bookie that knows no long polls, and TimedOut by one that hangs, long before the
        end of `seconds`.
        """
        ...
