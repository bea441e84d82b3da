"""The tailing buffer (PIP-76's offload buffer): a topic's newest entries in memory, bounded, never the authority.

A stored batch keeps the position that it directly follows, as its feeder knew it. So the buffer can tell a gap (a
declined offer, to be read from the ledger source) from a change of ledger. Entries are pinned until they are inside a
cut part. A topic with a ledger source may then lose them under pressure; a push-only topic keeps them until they are
committed. Nothing here awaits: offers are answered at once.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from typing import NamedTuple, Protocol

from offloaderd.core.aio import Signal, race
from offloaderd.core.limits import Flow
from offloaderd.core.model import START, EntryBatch, OfferResult, Position
from offloaderd.topic.chooser import Requests


class MemoryHolder(Protocol):
    """The topic of a buffer, which frees memory with each committed segment."""

    @property
    def buffer(self) -> "TailingBuffer":
        """Its buffer."""
        ...

    @property
    def requests(self) -> Requests:
        """Its mailbox."""
        ...

    @property
    def frees_on_seal(self) -> bool:
        """Whether a seal now or soon frees memory."""
        ...


SHARE = 3
"""A flow that holds entries gets more only while a third of what it then holds stays free, so it never takes all."""


class BufferPool:
    """The byte budget that all tailing buffers share.

    While there are buffers of several namespaces, each leaves room for the others (`SHARE`; Choudhury and Hahne,
    "Dynamic queue length thresholds for shared-memory packet switches", 1998).
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.freed = Signal()
        self._buffers: dict[TailingBuffer, None] = {}  # a set that keeps its order
        self._holders: dict[TailingBuffer, MemoryHolder] = {}
        self._flows: Counter[Flow | None] = Counter()  # buffers
        self._used_by: Counter[Flow | None] = Counter()
        self._overdrawing: TailingBuffer | None = None

    def follow(self, limit_bytes: int) -> None:
        """Take another limit; under a lower one, memory is freed as segments are committed."""
        self.limit_bytes = limit_bytes
        self.freed.notify()

    @property
    def overdrawn_bytes(self) -> int:
        """Bytes held beyond the limit."""
        return max(0, self.used_bytes - self.limit_bytes)

    def admit(self, wanted: int, buffer: "TailingBuffer", *, needed_by: "TailingBuffer | None" = None) -> bool:
        """Make room for `wanted` bytes of a buffer by evicting entries of cut parts; False if there is none.

        Then the topic with the most memory is requested to seal early, or the next one if that cannot help; where there
        is memory and the flow's share is used up, only a topic of that flow. An entry larger than the whole budget is
        admitted alone. A starving buffer (`needed_by`) may overdraw unless another
        does; this counts once the bytes are booked.
        """
        if self._fits(wanted) and self._leaves_room(wanted, buffer):
            return True
        asked = [one for one in self._buffers if one.flow is buffer.flow or not self._fits(wanted)]
        for one in sorted(asked, key=lambda one: one.evictable_bytes, reverse=True):
            one.evict(max(wanted, self.used_bytes + wanted - self.limit_bytes))
            if self._fits(wanted) and self._leaves_room(wanted, buffer):
                return True
        if needed_by is not None and needed_by.starving and self._overdrawing in {None, needed_by}:
            return True
        by_size = sorted(asked, key=lambda one: one.used_bytes, reverse=True)
        any(self._asked(one) for one in by_size if one.used_bytes)
        return False

    def _asked(self, buffer: "TailingBuffer") -> bool:
        """Request an early seal; returns whether that frees memory."""
        holder = self._holders.get(buffer)
        if holder is None:
            return False
        holder.requests.free_memory()
        return holder.frees_on_seal

    def _fits(self, wanted: int) -> bool:
        return self.used_bytes == 0 or self.used_bytes + wanted <= self.limit_bytes

    def _leaves_room(self, wanted: int, buffer: "TailingBuffer") -> bool:
        """Return whether the buffer's flow leaves enough to others with these bytes, if there are others."""
        used, free = self._used_by[buffer.flow], self.limit_bytes - self.used_bytes - wanted
        return not used or len(self._flows) < 2 or used + wanted <= SHARE * free

    def add(self, buffer: "TailingBuffer") -> None:
        """Add a buffer."""
        self._buffers[buffer] = None
        self._flows[buffer.flow] += 1

    def hold(self, holder: MemoryHolder) -> None:
        """Send requests to seal early to the holder of a buffer, until that is closed."""
        self._holders[holder.buffer] = holder

    def remove(self, buffer: "TailingBuffer") -> None:
        """Remove a closed buffer."""
        if self._buffers.pop(buffer, buffer) is None:
            self._flows[buffer.flow] -= 1
            if not self._flows[buffer.flow]:
                del self._flows[buffer.flow]
        self._holders.pop(buffer, None)
        self.pass_on(buffer)

    def take(self, size_bytes: int, buffer: "TailingBuffer") -> None:
        """Book bytes that a buffer has taken after `admit`."""
        self._book(size_bytes, buffer)
        if self.overdrawn_bytes and buffer.starving and self._overdrawing is None:
            self._overdrawing = buffer

    def free(self, size_bytes: int, buffer: "TailingBuffer") -> None:
        """Book bytes that a buffer has freed."""
        self._book(-size_bytes, buffer)
        if size_bytes:
            self.freed.notify()

    def _book(self, size_bytes: int, buffer: "TailingBuffer") -> None:
        self.used_bytes += size_bytes
        self._used_by[buffer.flow] += size_bytes
        if not self._used_by[buffer.flow]:
            del self._used_by[buffer.flow]

    def pass_on(self, buffer: "TailingBuffer") -> None:
        """End this buffer's overdraft, so that another may overdraw."""
        if self._overdrawing is buffer:
            self._overdrawing = None
            self.freed.notify()


MERGE_BYTES = 64 * 1024
"""Smaller batches are joined as they arrive, so that the number of stored batches is bounded by the bytes."""

ENTRY_OVERHEAD_BYTES = 64
"""Memory of one small Python `bytes` beyond its content, with its slot in the batch."""


class Missing(NamedTuple):
    """Entries that the buffer lacks: those after `after`, up to but without `before` (None: up to the edge)."""

    after: Position
    before: Position | None


class _Stored(NamedTuple):
    batch: EntryBatch
    follows: Position | None
    cost: int


def cost_bytes(batch: EntryBatch) -> int:
    """Memory that a batch takes, in bytes."""
    return batch.payload_bytes() + ENTRY_OVERHEAD_BYTES * len(batch.payloads)


class TailingBuffer:
    """One topic's part of the pool, with PIP-76's offer protocol.

    `resume` is the newest offloaded position (START for none). `rereadable`: a ledger source holds all entries, so
    declining and evicting lose none. `flow` is that of its namespace.
    """

    def __init__(self, pool: BufferPool, *, resume: Position, rereadable: bool, flow: Flow | None = None) -> None:
        self._pool = pool
        self.flow = flow
        self.rereadable = rereadable
        self._stored: list[_Stored] = []
        self._lasts: list[Position] = []  # last position of each stored batch, for bisection
        self._seen: Position | None = None if rereadable and resume == START else resume
        self._offered = self._seen
        self._cut = resume
        self._closed = False
        self.refusing = False
        """Whether offers are answered CLOSED although entries are still held."""
        self.diverted = False
        """Whether offers find no room because earlier ones wait elsewhere for theirs."""
        self.starving = False
        """Whether a segment that cannot end yet has taken all its entries here, and needs more."""
        self.demand = Signal()
        """Notified when it begins to starve."""
        self.changed = Signal()
        self.need = 0
        """Changes whenever the entries that the source has to fill in may have changed."""
        self.used_bytes = 0
        self.evictable_bytes = 0
        pool.add(self)

    @property
    def closed(self) -> bool:
        """Whether the topic was given up."""
        return self._closed

    async def wait_for_room(self) -> None:
        """Return when memory of the shared pool was freed since the call, or this topic may exceed it."""
        await race(self._pool.freed.wait(), self.demand.wait())

    @property
    def last_offered(self) -> Position | None:
        """Newest position that was taken or offloaded before; None when none is known."""
        return None if self._offered == START else self._offered

    def can_offer(self, size_bytes: int) -> bool:
        """Return whether an offer of that many bytes would find room now."""
        return not (self._closed or self.refusing or self.diverted) and self._has_room(size_bytes)

    def _has_room(self, size_bytes: int) -> bool:
        """Return whether an offer finds room; one that can be read again never overdraws."""
        return self._pool.admit(size_bytes, self, needed_by=None if self.rereadable else self)

    def offer(self, batch: EntryBatch) -> OfferResult:
        """Take a pushed batch, or return why not. Never waits; an empty batch is NOT_CONSECUTIVE."""
        if self._closed or self.refusing:
            return OfferResult.CLOSED
        follows = self._follows(batch)
        if not batch.payloads or follows is None:
            return OfferResult.NOT_CONSECUTIVE
        cost = cost_bytes(batch)
        if self.diverted or not self._has_room(cost):
            if self.rereadable:
                self._seen = batch.last
                self.need += 1
            return OfferResult.FULL
        # The source, if there is one, decides which ledger is next: a broker may have left some out.
        known = self._seen is not None and not (self.rereadable and batch.ledger_id != follows.ledger_id)
        self._seen = self._offered = batch.last
        self.need += 1
        self._insert(_Stored(batch, follows if known else None, cost))
        return OfferResult.ACCEPTED

    def expects(self, batch: EntryBatch) -> bool:
        """Return whether a batch is the next one to be offered."""
        return bool(batch.payloads) and self._follows(batch) is not None

    def overflow(self, batch: EntryBatch) -> Position | None:
        """Count a batch as offered that is kept elsewhere until `fill`; return the position that it follows."""
        follows = self._seen
        self._seen = self._offered = batch.last
        return follows

    def _follows(self, batch: EntryBatch) -> Position | None:
        """Return the position that an offered batch directly follows, START for any first, None for neither."""
        for tail in (self._seen, self._offered):
            if tail is None or tail == START:
                return START
            if batch.first == (tail.ledger_id, tail.entry_id + 1):
                return tail
            if batch.ledger_id > tail.ledger_id and batch.first_entry_id == 0:
                return tail
        return None

    def fill(self, batch: EntryBatch, follows: Position) -> bool:
        """Take a batch read from the ledger source; False when there is no room.

        Entries behind a gap are evicted for it: the segment cannot use them before, and they can be read again.
        """
        cost = cost_bytes(batch)
        if self._closed or not (self._pool.admit(cost, self) or self._squeeze_in(batch.last, cost)):
            return False
        self._insert(_Stored(batch, follows, cost))
        if self._offered is None or batch.last > self._offered:
            self._offered = batch.last
        if self._seen is None or batch.last > self._seen:
            self._seen = batch.last
        return True

    def _squeeze_in(self, last: Position, cost: int) -> bool:
        """Make room for a batch that ends at `last` by evicting later entries, or by a starving segment's overdraft."""
        dropped = self.rereadable and self._drop(bisect_right(self._lasts, last), len(self._stored))
        return (bool(dropped) or self.starving) and self._pool.admit(cost, self, needed_by=self)

    def _insert(self, stored: _Stored) -> None:
        at = bisect_left(self._lasts, stored.batch.last)
        if at and (joined := self._joined(self._stored[at - 1], stored)):
            self._stored[at - 1] = joined
            self._lasts[at - 1] = joined.batch.last
        else:
            self._stored.insert(at, stored)
            self._lasts.insert(at, stored.batch.last)
        self.used_bytes += stored.cost
        self._pool.take(stored.cost, self)
        self.starving = False
        self.changed.notify()

    def _joined(self, before: _Stored, stored: _Stored) -> _Stored | None:
        """Return both as one if they are small, adjacent in one ledger, and neither is in a cut part."""
        first, second = before.batch, stored.batch
        if stored.follows != first.last or first.ledger_id != second.ledger_id or first.last <= self._cut:
            return None
        if before.cost + stored.cost > MERGE_BYTES:
            return None
        payloads = [*first.payloads, *second.payloads]
        return _Stored(
            EntryBatch(first.ledger_id, first.first_entry_id, payloads), before.follows, before.cost + stored.cost
        )

    def _next_after(self, position: Position) -> int | None:
        """Index of the stored batch that holds or directly follows the entry after `position`."""
        at = bisect_right(self._lasts, position)
        if at == len(self._lasts):
            return None
        stored = self._stored[at]
        following = (position.ledger_id, position.entry_id + 1)
        if stored.batch.first <= following <= stored.batch.last or stored.follows == position:
            return at
        return None

    def take(self, after: Position, bytes_max: int) -> list[EntryBatch]:
        """Return the entries directly after `after`, about `bytes_max` of them; they stay in the buffer."""
        taken: list[EntryBatch] = []
        while bytes_max > 0 and (at := self._next_after(after)) is not None:
            batch = self._stored[at].batch
            if batch.ledger_id == after.ledger_id:
                batch = batch.between(after.entry_id + 1, batch.last_entry_id)
            taken.append(batch)
            bytes_max -= self._stored[at].cost
            after = batch.last
        return taken

    def first_after(self, after: Position) -> Position | None:
        """Return the first entry directly after `after`; None while it is not here."""
        if (at := self._next_after(after)) is None:
            return None
        first = self._stored[at].batch.first
        if first.ledger_id != after.ledger_id:
            return first
        return max(first, Position(after.ledger_id, after.entry_id + 1))

    def gap(self, after: Position) -> Missing:
        """Return the first entries behind `after` that are not here."""
        while (at := self._next_after(after)) is not None:
            after = self._lasts[at]
        at = bisect_right(self._lasts, after)
        return Missing(after, self._stored[at].batch.first if at < len(self._stored) else None)

    def connect(self, gap: Missing) -> None:
        """Close a gap in which the source has no entries: those pushed behind it follow directly."""
        at = bisect_right(self._lasts, gap.after)
        if at < len(self._stored) and self._stored[at].batch.first == gap.before:
            self._stored[at] = self._stored[at]._replace(follows=gap.after)
            self.changed.notify()

    def forget(self, gap: Missing) -> list[EntryBatch]:
        """Drop and return the held entries of the ledger in which a gap ends, which the source will never fill."""
        at = end = bisect_right(self._lasts, gap.after)
        while end < len(self._stored) and self._stored[end].batch.ledger_id == self._stored[at].batch.ledger_id:
            end += 1
        dropped = [stored.batch for stored in self._stored[at:end]]
        self._drop(at, end)
        return dropped

    def read(self, first: Position, last: Position | None, bytes_max: int) -> EntryBatch | None:
        """Return entries of one ledger from `first` on, at most to `last`; None when `first` is not here."""
        at = bisect_left(self._lasts, first)
        if at == len(self._lasts) or not self._stored[at].batch.first <= first:
            return None
        payloads: list[bytes] = []
        size, expected = 0, first
        while at < len(self._stored) and size < bytes_max:
            batch = self._stored[at].batch
            if not batch.first <= expected <= batch.last:
                break
            limit = last.entry_id if last is not None and last.ledger_id == first.ledger_id else batch.last_entry_id
            piece = batch.between(expected.entry_id, limit)
            for payload in piece.payloads:
                if size and size + len(payload) > bytes_max:
                    return EntryBatch(first.ledger_id, first.entry_id, payloads)
                payloads.append(payload)
                size += len(payload)
            expected = Position(first.ledger_id, piece.last_entry_id + 1)
            at += 1
        return EntryBatch(first.ledger_id, first.entry_id, payloads) if payloads else None

    def span(self) -> tuple[Position, Position] | None:
        """Return the oldest and newest position held; there may be gaps between."""
        return (self._stored[0].batch.first, self._lasts[-1]) if self._stored else None

    def pending_after(self, position: Position) -> tuple[int, int]:
        """Entries and payload bytes held behind `position`."""
        entries = size = 0
        for stored in self._stored[bisect_right(self._lasts, position) :]:
            batch, whole_bytes = stored.batch, stored.cost - ENTRY_OVERHEAD_BYTES * len(stored.batch.payloads)
            if batch.first <= position:
                batch = batch.between(position.entry_id + 1, batch.last_entry_id)
                whole_bytes = batch.payload_bytes()
            entries += len(batch.payloads)
            size += whole_bytes
        return entries, size

    def mark_cut(self, position: Position) -> None:
        """Note that entries up to `position` are inside a part: a rereadable topic may lose them under pressure."""
        before = bisect_right(self._lasts, self._cut)
        self._cut = max(self._cut, position)
        if self.rereadable:
            at = bisect_right(self._lasts, self._cut)
            self.evictable_bytes += sum(stored.cost for stored in self._stored[before:at])

    def restart(self, position: Position) -> None:
        """Pin the entries behind `position` again, since the open segment was given up.

        Tasks that wait for room for the old need are woken: while the front is missing, there may never be room.
        """
        self._cut = position
        self.evictable_bytes = 0
        self.need += 1
        self.starving = False
        self._pool.pass_on(self)
        self.changed.notify()
        self._pool.freed.notify()

    def evict(self, bytes_wanted: int) -> None:
        """Drop the oldest entries that are in cut parts until `bytes_wanted` are free, or none is left."""
        count, freed = 0, 0
        limit = bisect_right(self._lasts, self._cut) if self.rereadable else 0
        while count < limit and freed < bytes_wanted:
            freed += self._stored[count].cost
            count += 1
        self._drop(0, count)
        self.evictable_bytes -= freed

    def release(self, position: Position) -> None:
        """Drop the entries up to `position`, which is committed, and wake all tasks that wait for room.

        It may be beyond the last offer, when an earlier owner had taken that; offers then continue behind it.
        """
        if self._seen is not None and self._seen < position:
            self._seen = self._offered = position
        self.mark_cut(position)
        count = bisect_right(self._lasts, position)
        if self.rereadable:
            self.evictable_bytes -= sum(stored.cost for stored in self._stored[:count])
        self._drop(0, count)
        self._trim(position)
        self.starving = False
        self._pool.pass_on(self)
        self._pool.freed.notify()

    def _trim(self, position: Position) -> None:
        """Drop the committed begin of a batch whose rest is still needed."""
        if not self._stored or not self._stored[0].batch.first <= position:
            return
        old = self._stored[0]
        rest = old.batch.between(position.entry_id + 1, old.batch.last_entry_id)
        self._stored[0] = _Stored(rest, position, cost_bytes(rest))
        freed = old.cost - self._stored[0].cost
        self.used_bytes -= freed
        self._pool.free(freed, self)

    def _drop(self, begin: int, end: int) -> int:
        """Drop stored batches from one index up to another; returns the bytes that this freed."""
        freed = sum(stored.cost for stored in self._stored[begin:end])
        del self._stored[begin:end]
        del self._lasts[begin:end]
        self.used_bytes -= freed
        if freed:
            self._pool.free(freed, self)
            self.changed.notify()
        return freed

    def starve(self) -> None:
        """Note that a segment which cannot end yet has taken all its entries here; feeders try again."""
        if not self.starving:
            self.starving = True
            self.demand.notify()

    def let_others(self) -> None:
        """Let another topic overdraw the memory, as no entries come for this one."""
        self._pool.pass_on(self)

    def refuse(self) -> None:
        """Answer offers with CLOSED from now on; held entries stay."""
        self.refusing = True

    def close(self) -> None:
        """Drop everything; later offers are answered CLOSED."""
        if not self._closed:
            self._closed = True
            self._drop(0, len(self._stored))
            self.evictable_bytes = 0
            self._pool.remove(self)
            self.changed.notify()
