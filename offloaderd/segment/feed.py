"""Where a segment's entries come from: consecutive entries of one topic, whatever holds them.

`take` answers at once and never awaits, so whoever asks decides and asks in one step; `wait` returns when the answer
may be another one. What is only not there yet is no error: what a feed cannot read at all leaves through `wait`.
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
    """Bytes of a budget, held under a name until they are given back; giving back twice does nothing."""

    def __init__(self, budget: ByteBudget, holder: Hashable, size_bytes: int = 0) -> None:
        """Take over what was acquired already."""
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
        """Acquire bytes for one that is empty; cancellation leaves nothing taken."""
        await self._budget.acquire(size_bytes, self._holder)
        self.size_bytes = size_bytes

    async def moved(self, size_bytes: int) -> "Reservation":
        """Hand everything over to whoever sends a part of that size; this one is empty then.

        A surplus is given back at once. If the part is larger and there is no room at once, all is given back first:
        two parts that hold something and wait for more would wait for each other.
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
        """Give everything back."""
        size_bytes, self.size_bytes = self.size_bytes, 0
        if size_bytes:
            self._budget.release(size_bytes, self._holder)


@dataclass(frozen=True, slots=True)
class Entries:
    """Consecutive entries directly behind the position that was asked for, at least one.

    `reservation` is what is reserved of the budget of uploads to read them, the same one as long as the feed lives:
    whoever cuts them into a part takes over what it holds, and the feed fills it again.
    """

    batches: tuple[EntryBatch, ...]
    reservation: Reservation | None = None


class Gap(NamedTuple):
    """The source has lost what comes next."""

    loss: Loss


class Empty(NamedTuple):
    """There is nothing yet."""


class Lost(NamedTuple):
    """What is required cannot come any more."""


class End(NamedTuple):
    """Nothing follows."""


Answer = Entries | Gap | Empty | Lost | End


class EntryFeed(Protocol):
    """Consecutive entries of one topic for one segment after the other, or for one alone."""

    @property
    def rereadable(self) -> bool:
        """Whether entries can be read again: parts that an earlier owner recorded count as sent then."""
        ...

    def take(self, after: Position, bytes_max: int, required: Position | None = None) -> Answer:
        """Return what directly follows `after`, about `bytes_max` of it; the entries stay with the feed.

        `required` is the end of a segment that may end nowhere else, as long as its entries may come.
        """
        ...

    async def wait(self, timeout_s: float) -> None:
        """Return when `take` may answer something else than Empty, or after `timeout_s`. Raises what ends the reading.

        To be called with no await since the answer.
        """
        ...

    def restart(self, at: Position) -> None:
        """Go on behind a position, wherever the feed was: on opening, after a failure, after an adoption."""
        ...

    def sent(self, through: Position) -> None:
        """Entries are inside a part: they may be dropped if they can be read again."""
        ...

    def committed(self, through: Position) -> None:
        """Entries are part of the topic: nobody asks for them again."""
        ...

    async def close(self) -> None:
        """Give back what is reserved, and end the reading. May be called again."""
        ...


class ReadAheadFeed:
    """A feed of what can be read from its begin to its end at once, one batch at a time.

    `batches` yields what follows a position, until nothing does; it goes on behind a Gap if that was recorded
    meanwhile, else it ends; Empty says that it pauses. What is read of a part counts against the budget of uploads
    until the part is cut: `reserve_bytes` of it, under `holder`, before the first entry is read, and not while the
    reading pauses. `wait` ignores its timeout, and is cancelled only for good.
    """

    rereadable = True

    def __init__(
        self,
        batches: Batches,
        budget: ByteBudget,
        *,
        reserve_bytes: int,
        holder: Hashable,
    ) -> None:
        self._batches = batches
        self._reserve_bytes = reserve_bytes
        self._reservation = Reservation(budget, holder)
        self._at = START
        self._reading: Reading | None = None
        self._left: list[Reading] = []  # those of before a restart, to be closed
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
        self._at, self._found, self._ended = at, None, False
        if self._reading is not None:
            self._left.append(self._reading)
            self._reading = None

    def sent(self, through: Position) -> None:
        """Keep what there is: it is read but once."""

    def committed(self, through: Position) -> None:
        """Keep nothing of it: the segment is at its end."""

    async def close(self) -> None:
        """See EntryFeed."""
        self._reservation.release()
        self.restart(self._at)
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
        """Return the hash of all that was taken."""
        return self._sum.hexdigest()


class HashingFeed(ReadAheadFeed):
    """A feed that hashes its entries, of which the first is at `begin`. All that it answers counts as taken."""

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
