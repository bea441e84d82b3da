"""The port to a ledger source, and to a ledger store that can also be written; and the watches that sources share.

A source has entries until they are deleted from it: BookKeeper, or the embedded store. It never shows more than the
writer confirmed.
"""

from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Protocol, runtime_checkable

from offloaderd.core.aio import Event
from offloaderd.core.errors import Closed
from offloaderd.core.model import Confirmed, EntryBatch, LedgerInfo, Position, TopicName


class LedgerSource(Protocol):
    """Read access to the ledgers of topics. Every method may raise Transient; cancellation leaves nothing behind."""

    async def topics(self, *, tenant: str | None = None, namespace: str | None = None) -> Sequence[TopicName]:
        """Return the topics that the source knows, in name order: all, or those of a tenant, or of its namespace."""
        ...

    async def reserved(self, topic: TopicName) -> str | None:
        """Return why only a policy by name offloads a topic (system topics, compacted ones); None for others."""
        ...

    async def ledgers(self, topic: TopicName) -> Sequence[LedgerInfo]:
        """Return the topic's ledgers in order; all but the last are closed. Raises NotFound for an unknown topic."""
        ...

    def watch(self, topic: TopicName) -> AsyncGenerator[None, None]:
        """Yield at once, then whenever entries, ledgers or states may have changed; changes are coalesced.

        An unknown topic is no error: it may appear. The iterator ends only by being closed.
        """
        ...

    async def confirmed(self, topic: TopicName, ledger_id: int) -> Confirmed:
        """Return the last entry that may be read, and whether the ledger is closed. Raises NotFound."""
        ...

    def read(
        self, topic: TopicName, ledger_id: int, first_entry_id: int, last_entry_id: int, *, batch_bytes: int
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield every entry of the range once, in order, in batches of about `batch_bytes` (at least one entry).

        The range must lie within what `confirmed` allowed. Raises NotFound for a ledger that does not exist
        (any more); CorruptData when an entry fails its check, or is missing from an existing ledger.
        """
        ...

    async def length_at(self, topic: TopicName, ledger_id: int, entry_id: int) -> int:
        """Return the payload bytes of the ledger up to and including `entry_id`. Raises NotFound."""
        ...

    async def delete(self, topic: TopicName, ledger_id: int) -> None:
        """Delete a closed ledger; a missing one is no error.

        Raises Denied where the daemon may not delete (BookKeeper), InvalidInput for an open ledger.
        """
        ...


@runtime_checkable
class OtherDomains(Protocol):
    """A source with topics of other domains, which are not offloaded: see offloaderd.core.model."""

    async def not_covered(self, *, tenant: str | None = None, namespace: str | None = None) -> Sequence[str]:
        """Return the full names of these topics; arguments as in `topics`. Raises Transient, Denied."""
        ...


class LedgerOrigin(Protocol):
    """The identity of a source: ids of ledgers are unique only within their source."""

    async def identity(self) -> str | None:
        """Return the source's own id, constant while its ledgers keep theirs, or None. Raises Transient, Denied."""
        ...

    async def moved(self, topic: TopicName) -> str | None:
        """Return why the list of a topic's ledgers may be out of date; None if it is not. Raises Transient, Denied."""
        ...

    async def inspected(self, topic: TopicName, ledger_id: int) -> LedgerInfo:
        """Return a ledger as its store has it, with creation time. Raises NotFound, Transient, Denied, CorruptData."""
        ...


class LedgerDescriber(Protocol):
    """BookKeeper's metadata of a ledger; a source without BookKeeper makes up the missing fields."""

    async def described(self, topic: TopicName, ledger_id: int) -> bytes:
        """Return a closed ledger's LedgerMetadataFormat as in a V1 index. Raises NotFound, InvalidInput: it is open."""
        ...


class BrokerOffloads(Protocol):
    """Ledgers that brokers have offloaded themselves, whether or not the source still has them."""

    async def offloaded(self, topic: TopicName) -> Sequence[LedgerInfo]:
        """Return in order the closed ledgers that a broker has offloaded whole, also deleted ones. Raises NotFound."""
        ...


class LedgerRegister(Protocol):
    """The authoritative list of a topic's ledgers: a ledger that is missing from it was deleted.

    The list of readable ledgers of LedgerSource is not authoritative.
    """

    async def listed(self, topic: TopicName) -> Collection[int]:
        """Return the ids of the topic's ledgers, readable or not, at a time after the call.

        Raises NotFound if it is certain that the topic does not exist, Transient if it is unknown.
        """
        ...


@runtime_checkable
class ShadowTopics(Protocol):
    """A source that knows shadow topics (PIP-180): their ledgers are another topic's."""

    async def source_topic(self, topic: TopicName) -> TopicName | None:
        """Return the topic whose ledgers a shadow topic reads, else None. Raises NotFound, CorruptData, Transient."""
        ...


class LedgerStore(LedgerSource, LedgerDescriber, LedgerOrigin, Protocol):
    """A source that offloaderd itself can write: the embedded store."""

    async def create(self, topic: TopicName) -> None:
        """Make the topic known; one that exists is no error."""
        ...

    async def append(self, topic: TopicName, payloads: Sequence[bytes]) -> Position:
        """Append entries to the open ledger, rolling it over when it is full; returns the last entry's position.

        When it returns, the entries survive a crash of the process and of the machine. The topic is created if
        need be. Consecutive entries may fall into two ledgers. Raises InvalidInput for an oversized entry (the
        whole call is refused), NoSpace when the disk is full (nothing of the call is stored).
        """
        ...

    async def roll(self, topic: TopicName) -> None:
        """Close the open ledger; the next append opens a new one. A ledger without entries stays open."""
        ...


class Changes:
    """One event for each topic, shared by its watchers; all calls are made on the event loop.

    A watcher takes the event of the next change before its consumer reads the topic: a change during that read has set
    it already.
    """

    def __init__(self) -> None:
        self._next: dict[TopicName, Event] = {}
        self._closed = False

    def notify(self, topic: TopicName) -> None:
        """Wake the topic's watchers."""
        event = self._next.pop(topic, None)
        if event is not None:
            event.set()

    def close(self) -> None:
        """Wake all watchers, which raise Closed."""
        self._closed = True
        for event in self._next.values():
            event.set()
        self._next.clear()

    def next(self, topic: TopicName) -> Event:
        """Return the event of the topic's next change. Raises Closed."""
        if self._closed:
            raise Closed("the ledger store has been closed")
        return self._next.setdefault(topic, Event())

    async def watch(self, topic: TopicName) -> AsyncGenerator[None, None]:
        """Yield at once and after every change since the last yield. Raises Closed."""
        while True:
            changed = self.next(topic)
            yield
            await changed.wait()
