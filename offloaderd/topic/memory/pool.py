"""The memory that the tailing buffers of all topics share, and what is done when it is short.

First gives way what is inside cut parts and can be read again; then the topic that holds the most has its segment
sealed early. A segment whose end is decided, as an earlier owner sealed it or as it holds a whole ledger, cannot end
earlier, nor be given up, for the source may have deleted its first entries: several of them could wait for each other's
memory for ever. So one at a time may overdraw the pool, by what it lacks, until its segment is committed. Nothing here
awaits.
"""

from typing import Protocol

from offloaderd.core.aio.signal import Signal
from offloaderd.topic.mailbox import Requests


class MemoryShare(Protocol):
    """What a buffer has of the pool; it starves when its segment cannot end yet and has taken all there is for it."""

    used_bytes: int
    evictable_bytes: int
    starving: bool

    def evict(self, bytes_wanted: int) -> None:
        """Drop the oldest entries that can be read again until `bytes_wanted` are free, or none is left."""


class MemoryHolder(Protocol):
    """Who takes entries out of a buffer into segments, and frees memory with each that is committed."""

    @property
    def buffer(self) -> MemoryShare:
        """Where they are."""
        ...

    @property
    def requests(self) -> Requests:
        """Where it is asked."""
        ...

    @property
    def frees_on_seal(self) -> bool:
        """Whether a segment that is sealed soon, or is sealed already, frees memory."""
        ...


class BufferPool:
    """The byte budget that all tailing buffers share."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.freed = Signal()
        self._buffers: dict[MemoryShare, None] = {}  # a set that keeps its order
        self._holders: dict[MemoryShare, MemoryHolder] = {}
        self._overdrawing: MemoryShare | None = None

    def follow(self, limit_bytes: int) -> None:
        """Go on under another limit; what is held beyond a lower one goes as segments are committed."""
        self.limit_bytes = limit_bytes
        self.freed.notify()

    @property
    def overdrawn_bytes(self) -> int:
        """How much more is held than there should be."""
        return max(0, self.used_bytes - self.limit_bytes)

    def admit(self, wanted: int, *, needed_by: MemoryShare | None = None) -> bool:
        """Make room for `wanted` bytes by evicting what is already in cut parts; False if there is none.

        When there is none, the buffer that pins the most is asked to have its segment sealed early, or the next one if
        that cannot help. What is larger than the whole budget is let in alone, as one entry can be. What is `needed_by`
        a buffer that starves may exceed the budget unless another does; it counts as soon as it is booked.
        """
        if self._fits(wanted):
            return True
        for buffer in sorted(self._buffers, key=lambda one: one.evictable_bytes, reverse=True):
            buffer.evict(self.used_bytes + wanted - self.limit_bytes)
            if self._fits(wanted):
                return True
        if needed_by is not None and needed_by.starving and self._overdrawing in {None, needed_by}:
            return True
        by_size = sorted(self._buffers, key=lambda one: one.used_bytes, reverse=True)
        any(self._asked(one) for one in by_size if one.used_bytes)
        return False

    def _asked(self, buffer: MemoryShare) -> bool:
        """Ask for a segment to be sealed early; says whether that frees memory."""
        holder = self._holders.get(buffer)
        if holder is None:
            return False
        holder.requests.free_memory()
        return holder.frees_on_seal

    def _fits(self, wanted: int) -> bool:
        return self.used_bytes == 0 or self.used_bytes + wanted <= self.limit_bytes

    def add(self, buffer: MemoryShare) -> None:
        """Count a buffer in."""
        self._buffers[buffer] = None

    def hold(self, holder: MemoryHolder) -> None:
        """Have somebody asked to seal early what is in a buffer, until that is closed."""
        self._holders[holder.buffer] = holder

    def remove(self, buffer: MemoryShare) -> None:
        """Count a closed buffer out."""
        self._buffers.pop(buffer, None)
        self._holders.pop(buffer, None)
        self.pass_on(buffer)

    def take(self, size_bytes: int, buffer: MemoryShare) -> None:
        """Book what a buffer has taken after `admit`."""
        self.used_bytes += size_bytes
        if self.overdrawn_bytes and buffer.starving and self._overdrawing is None:
            self._overdrawing = buffer

    def free(self, size_bytes: int) -> None:
        """Book what a buffer has freed."""
        self.used_bytes -= size_bytes
        if size_bytes:
            self.freed.notify()

    def pass_on(self, buffer: MemoryShare) -> None:
        """Let another overdraw if this buffer did."""
        if self._overdrawing is buffer:
            self._overdrawing = None
            self.freed.notify()
