"""What a segment's writer may know of its topic: a look that does not change while it is decided by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from offloaderd.model import Position


class Requested(NamedTuple):
    """What somebody wants of a topic at the moment."""

    stopping: bool = False
    """Whether its owner is to leave it; what is not stored is left to the next one."""
    seal_to: Position | None = None
    """The entry up to which everything is to be committed soon."""
    memory: bool = False
    """Whether memory is short, which a commit may free."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as it is when the writer looks at it."""

    requested: Requested


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
