"""The mailbox of a topic: requests that its loop and segment writer read before each step.

A request is a state, not a message, so a repeated one counts once. Each wakes the loop.
"""

from offloaderd.core.aio import Signal
from offloaderd.core.model import Position
from offloaderd.segment.roll import RollPolicy
from offloaderd.segment.view import Requested


class Requests:
    """The open requests to one topic; `changed` wakes its loop."""

    def __init__(self, changed: Signal, policy: RollPolicy) -> None:
        self.policy = policy
        """The policy in force."""
        self.stopping = False
        """Whether the owner is to release the topic."""
        self._seal_to: Position | None = None
        self._memory = False
        self._changed = changed

    def follow(self, policy: RollPolicy) -> None:
        """Take another policy."""
        self.policy = policy
        self._changed.notify()

    def stop(self) -> None:
        """Request that the open segment is sealed and the topic released."""
        self.stopping = True
        self._changed.notify()

    def seal_to(self, target: Position) -> None:
        """Request a seal as soon as the segment holds the entry at `target`."""
        self._seal_to = max(target, self._seal_to or target)
        self._changed.notify()

    def free_memory(self) -> None:
        """Request a seal soon, because memory is short."""
        if not self._memory:
            self._memory = True
            self._changed.notify()

    def includes(self, position: Position) -> bool:
        """Return whether everything up to `position` is requested."""
        return self._seal_to is not None and position <= self._seal_to

    def committed(self, end: Position) -> None:
        """Drop the requests that a commit up to `end` fulfils."""
        if self._seal_to is not None and self._seal_to <= end:
            self._seal_to = None
        self._memory = False

    def now(self) -> Requested:
        """Return the requests to the open segment."""
        return Requested(self.stopping, self._seal_to, self._memory)
