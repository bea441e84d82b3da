"""What the services need of the engine, as narrow Protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.metadata.catalog import TopicMap
    from offloaderd.metadata.records.asked import Asked
    from offloaderd.metadata.records.attempt import Attempt
    from offloaderd.metadata.records.policy import TopicPolicy
    from offloaderd.model import Position, TopicName
    from offloaderd.offload.roll import RollPolicy
    from offloaderd.offload.selection import Change
    from offloaderd.offload.status import TopicStatus
    from offloaderd.offload.wanted import Plan, Wanted
    from offloaderd.patterns import TopicPattern


class Signal(Protocol):
    """Something that tells of changes."""

    async def wait(self) -> object:
        """Return after the next change."""
        ...


class ByHand(Protocol):
    """What can be asked of a topic's owner."""

    async def plan(self, wanted: Wanted) -> Plan:
        """Say what a wish comes to now. Raises InvalidInput, Transient."""
        ...

    async def ask(self, wanted: Wanted, by: str) -> tuple[Asked, Plan]:
        """Have it offloaded. Raises InvalidInput, Conflict under a method that takes nothing, Transient."""
        ...

    async def by_itself(self) -> Asked:
        """Return what goes on without having been asked for, as if it had been, in no words. Raises Transient."""
        ...

    def left(self, target: Position) -> tuple[int, int]:
        """Return the entries and payload bytes up to `target` that are not offloaded."""
        ...


class TopicOffloader(Protocol):
    """One topic that this daemon owns."""

    @property
    def offloaded(self) -> Position | None:
        """Newest committed position."""
        ...

    @property
    def attempt(self) -> Attempt | None:
        """The open segment's record."""
        ...

    @property
    def changed(self) -> Signal:
        """Fires when the status may have changed."""
        ...

    def status(self) -> TopicStatus:
        """Return how far the topic is."""
        ...

    @property
    def policy(self) -> RollPolicy:
        """What holds for it."""
        ...

    @property
    def by_hand(self) -> ByHand:
        """What can be asked of it."""
        ...


class Owner(Protocol):
    """The daemon that owns a topic."""

    @property
    def daemon_id(self) -> str:
        """Its id."""
        ...

    @property
    def address(self) -> str:
        """Where its gRPC server listens, `host:port`."""
        ...

    @property
    def epoch(self) -> int:
        """Number of its ownership."""
        ...


class Engine(Protocol):
    """What the service needs of the offload engine."""

    async def select(self, pattern: TopicPattern, policy: TopicPolicy, *, dry_run: bool = False) -> Sequence[Change]:
        """Enable what a pattern matches now and later, or change its policy."""
        ...

    async def deselect(self, pattern: TopicPattern, *, dry_run: bool = False) -> Sequence[Change]:
        """Take a pattern back, and complete the open segments of its topics that are here. Raises NotFound."""
        ...

    @property
    def changed(self) -> Signal:
        """Fires when a topic was claimed or released."""
        ...

    def find(self, topic: TopicName) -> TopicOffloader | None:
        """Return the topic's offloader if this daemon owns it and it is awake."""
        ...

    async def wake(self, topic: TopicName) -> None:
        """Have a topic that is here awake for some time."""
        ...

    async def heed(self, topic: TopicName) -> None:
        """Have a topic that is here follow what is said of it at this moment."""
        ...

    async def owned(self, topic: TopicName) -> TopicOffloader:
        """Return the topic's offloader.

        Raises NotFound (not enabled), Conflict (owned elsewhere), Transient (being claimed), or what stalled it.
        """
        ...

    async def owner_of(self, topic: TopicName) -> Owner | None:
        """Return the topic's owner, None when nobody holds it."""
        ...

    def placed(self, topic: TopicName, owner: str) -> str:
        """Say why an enabled topic with this owner (empty: none) is not where it belongs; empty: it is."""
        ...

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return the topic's committed segments."""
        ...

    def known(self, topic: TopicName) -> TopicMap | None:
        """Return what this daemon knows by itself to be committed, None for nothing."""
        ...

    def alarms(self) -> Sequence[str]:
        """Say what is wrong and belongs to no single topic."""
        ...

    def statuses(self) -> Sequence[TopicStatus]:
        """Describe every enabled topic that this daemon works on or waits for."""
        ...
