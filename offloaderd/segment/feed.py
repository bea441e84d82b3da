"""Entry feeds: consecutive entries of one topic for its segments.

`take` never awaits, so that its caller decides and takes in one step; `wait` returns when the answer may have changed.
Entries that have not arrived are no error; `wait` raises for entries that cannot be read at all.
"""

import hashlib
from collections.abc import AsyncGenerator, Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from offloaderd.core.limits import ByteBudget
from offloaderd.core.model import START, EntryBatch, Loss, Position

Reading = AsyncGenerator["EntryBatch | Gap | Empty", None]
Batches = Callable[[Position], Reading]


class Reservation:
    """Bytes of a budget, held under a name until they are released; a second release does nothing."""

    def __init__(self, budget: ByteBudget, holder: Hashable, size_bytes: int = 0) -> None:
        """Hold bytes that were acquired already."""
        self.size_bytes = size_bytes
        self._budget = budget
        self._holder = holder

    @classmethod
    async def of(cls, budget: ByteBudget, size_bytes: int, holder: Hashable) -> "Reservation":
        """Acquire bytes; cancellation leaves nothing taken."""
        one = cls(budget, holder)
        await one.fill(size_bytes)
        return one

    async def fill(self, size_bytes: int) -> None:
        """Acquire bytes for an empty reservation; cancellation leaves nothing taken."""
        await self._budget.acquire(size_bytes, self._holder)
        self.size_bytes = size_bytes

    async def moved(self, size_bytes: int) -> "Reservation":
        """Return a reservation for a part of that size, made of this one, which is empty then.

        A surplus is released. If the part needs more than is free, all is released first: two parts that hold some and
        wait for more would wait for each other.
        """
        more, held = size_bytes - self.size_bytes, self.size_bytes
        if more > 0 and not self._budget.take_now(more, self._holder):
            self.release()
            return await Reservation.of(self._budget, size_bytes, self._holder)
        self.size_bytes = 0
        if more < 0:
            self._budget.release(held - size_bytes, self._holder)
        return Reservation(self._budget, self._holder, size_bytes)

    def release(self) -> None:
        """Release all bytes."""
        size_bytes, self.size_bytes = self.size_bytes, 0
        if size_bytes:
            self._budget.release(size_bytes, self._holder)


@dataclass(frozen=True, slots=True)
class Entries:
    """Consecutive entries directly behind the requested position, at least one.

    `reservation` of the upload budget paid for reading them, the same object for the life of the feed: the writer takes
    its bytes when it cuts a part, and the feed fills it again.
    """

    batches: tuple[EntryBatch, ...]
    reservation: Reservation | None = None


class Gap(NamedTuple):
    """The source has lost the next entries."""

    loss: Loss


class Empty(NamedTuple):
    """The next entry has not arrived."""


class Lost(NamedTuple):
    """The required entries cannot come any more."""


class End(NamedTuple):
    """No entry follows."""


Answer = Entries | Gap | Empty | Lost | End


class EntryFeed(Protocol):
    """Consecutive entries of one topic, for one segment or for one after the other."""

    @property
    def rereadable(self) -> bool:
        """Whether entries can be read again, so that parts recorded by an earlier owner count as sent."""
        ...

    def take(self, after: Position, bytes_max: int, required: Position | None = None) -> Answer:
        """Return the entries directly behind `after`, about `bytes_max`; the feed keeps them.

        `required` is the decided end of a segment.
        """
        ...

    async def wait(self, timeout_s: float) -> None:
        """Return when `take` may answer other than Empty, or after `timeout_s`; to be called directly after `take`.

        Raises what ends the reading.
        """
        ...

    def restart(self, at: Position) -> None:
        """Continue behind a position: on opening, after a failure, after an adoption."""
        ...

    def sent(self, through: Position) -> None:
        """Note that entries are in a cut part: they may be dropped if they can be read again."""
        ...

    def committed(self, through: Position) -> None:
        """Note that entries are committed: they are not needed again."""
        ...

    async def close(self) -> None:
        """Release the reservation and end the reading. Idempotent."""
        ...


class ReadAheadFeed:
    """A feed of entries that exist already, read one batch ahead.

    `batches` yields the entries behind a position; behind a Gap it continues if that was recorded meanwhile, else it
    ends; with Empty it pauses. Before the first entry of a part is read, `reserve_bytes` of the upload budget are
    reserved under `holder`; a pause releases them. `wait` ignores its timeout, and a cancelled one is not repeated.
    """

    rereadable = True

    def __init__(self, batches: Batches, budget: ByteBudget, *, reserve_bytes: int, holder: Hashable) -> None:
        self._batches = batches
        self._reserve_bytes = reserve_bytes
        self._reservation = Reservation(budget, holder)
        self._at = START
        self._reading: Reading | None = None
        self._left: list[Reading] = []  # those from before a restart, to be closed
        self._found: EntryBatch | Gap | None = None
        self._ended = False

    def take(self, after: Position, bytes_max: int, required: Position | None = None) -> Answer:
        """See EntryFeed; at most the one batch that was read."""
        found = self._found
        if isinstance(found, Gap):
            if found.loss.after == after:
                self._found = None
                return found
        elif found is not None and found.last > after:
            rest = found
            if found.ledger_id == after.ledger_id:
                rest = found.between(after.entry_id + 1, found.last_entry_id)
            return Entries((rest,), self._reservation)
        self._found = None
        return End() if self._ended else Empty()

    async def wait(self, timeout_s: float) -> None:
        """Read the next batch, as soon as there is room for it."""
        while self._left:
            await self._left.pop().aclose()
        if not self._reservation.size_bytes:
            await self._reservation.fill(self._reserve_bytes)
        if self._reading is None:
            self._reading = self._batches(self._at)
        while isinstance(found := await anext(self._reading, None), Empty):
            self._reservation.release()
        self._found, self._ended = found, found is None

    def restart(self, at: Position) -> None:
        """See EntryFeed."""
        self._at = at
        self._forget()

    def _forget(self) -> None:
        self._found, self._ended = None, False
        if self._reading is not None:
            self._left.append(self._reading)
            self._reading = None

    def sent(self, through: Position) -> None:
        """Keep the entries: each is read once."""

    def committed(self, through: Position) -> None:
        """Do nothing: the segment is at its end."""

    async def close(self) -> None:
        """See EntryFeed."""
        self._reservation.release()
        self._forget()
        while self._left:
            await self._left.pop().aclose()


class EntryHash:
    """A hash over entries in order: equal for equal entries however they are cut into batches."""

    def __init__(self) -> None:
        self.entries = 0
        self._sum = hashlib.sha256()

    def take(self, batch: EntryBatch) -> None:
        """Take the next entries."""
        self.entries += len(batch.payloads)
        for payload in batch.payloads:
            self._sum.update(len(payload).to_bytes(8, "big"))
            self._sum.update(payload)

    def digest(self) -> str:
        """Return the hash of all entries taken."""
        return self._sum.hexdigest()


class HashingFeed(ReadAheadFeed):
    """A feed that hashes its entries, the first at `begin`. Every entry that it returns counts as taken.

    The hash outlives `close`: it is compared once the new object is complete.
    """

    def __init__(
        self, batches: Batches, budget: ByteBudget, *, begin: Position, reserve_bytes: int, holder: Hashable
    ) -> None:
        super().__init__(batches, budget, reserve_bytes=reserve_bytes, holder=holder)
        self._begin = begin
        self._hash: EntryHash | None = None
        self._hashed = START

    def digest(self, through: Position) -> EntryHash | None:
        """Return the hash from the begin to `through`; None when the reading began behind the begin."""
        return self._hash if self._hashed == through else None

    def take(self, after: Position, bytes_max: int, required: Position | None = None) -> Answer:
        """See EntryFeed."""
        found = super().take(after, bytes_max, required)
        if isinstance(found, Entries) and self._hash is not None and found.batches[-1].last > self._hashed:
            for batch in found.batches:
                self._hash.take(batch)
            self._hashed = found.batches[-1].last
        return found

    def restart(self, at: Position) -> None:
        """See EntryFeed."""
        self._hash, self._hashed = EntryHash() if at < self._begin else None, at
        super().restart(at)
