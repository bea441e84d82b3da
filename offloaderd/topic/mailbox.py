"""What others want of a topic: a mailbox that whoever writes its segments looks into before each step.

Every request is a state, not a message: the same one asked for again is one. All of them wake the loop.
"""

from offloaderd.core.aio.signal import Signal
from offloaderd.core.model import Position
from offloaderd.segment.roll import RollPolicy
from offloaderd.segment.view import Requested


class Requests:
    """What is wanted of one topic at the moment. `changed` wakes whoever writes its segments."""

    def __init__(self, changed: Signal, policy: RollPolicy) -> None:
        self.policy = policy
        """How to offload."""
        self.stopping = False
        """Whether the owner is to leave the topic."""
        self._seal_to: Position | None = None
        self._memory = False
        self._changed = changed

    def follow(self, policy: RollPolicy) -> None:
        """Offload under another policy."""
        self.policy = policy
        self._changed.notify()

    def stop(self) -> None:
        """Leave the topic; the open segment is sealed."""
        self.stopping = True
        self._changed.notify()

    def seal_to(self, target: Position) -> None:
        """Have the segment sealed as soon as it holds the entry at `target`."""
        self._seal_to = max(target, self._seal_to or target)
        self._changed.notify()

    def free_memory(self) -> None:
        """Have the segment sealed soon, because memory is short."""
        if not self._memory:
            self._memory = True
            self._changed.notify()

    def includes(self, position: Position) -> bool:
        """Say whether everything up to `position` was asked for."""
        return self._seal_to is not None and position <= self._seal_to

    def committed(self, end: Position) -> None:
        """A segment that ends with the entry at `end` is part of the topic: that much is done."""
        if self._seal_to is not None and self._seal_to <= end:
            self._seal_to = None
        self._memory = False

    def now(self) -> Requested:
        """Return what is wanted of the segment that is being written."""
        return Requested(self.stopping, self._seal_to, self._memory)
