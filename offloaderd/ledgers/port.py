"""The port to a ledger source, and to a ledger store that can also be written.

A source is where entries can always be read again until they are deleted from it: BookKeeper, or the embedded
store. It never shows more than the writer confirmed.
"""

from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Protocol, runtime_checkable

from offloaderd.core.model import Confirmed, EntryBatch, LedgerInfo, Position, TopicName


class LedgerSource(Protocol):
    """Read access to the ledgers of topics. Every method may raise Transient; cancellation leaves nothing behind."""

    async def topics(self, *, tenant: str | None = None, namespace: str | None = None) -> Sequence[TopicName]:
        """Return the topics that the source knows, in name order: all, or those of a tenant, or of its namespace."""
        ...

    async def reserved(self, topic: TopicName) -> str | None:
        """Say why a topic is not for offloading unless somebody names it (system topics, compacted ones), else None."""
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

        The range must lie within what `confirmed` allowed. Raises NotFound when the ledger is not there (any more);
        CorruptData when what is stored fails its check, or an entry is missing from a ledger that is there.
        """
        ...

    async def length_at(self, topic: TopicName, ledger_id: int, entry_id: int) -> int:
        """Return the payload bytes of the ledger up to and including `entry_id`. Raises NotFound."""
        ...

    async def delete(self, topic: TopicName, ledger_id: int) -> None:
        """Delete a closed ledger; one that is gone already is no error.

        Raises Denied where deleting is not this daemon's business (BookKeeper), InvalidInput for an open ledger.
        """
        ...


@runtime_checkable
class OtherDomains(Protocol):
    """A source that has topics of domains that are not taken: see offloaderd.core.domains."""

    async def not_covered(self, *, tenant: str | None = None, namespace: str | None = None) -> Sequence[str]:
        """Return their full names, as `topics` returns those that are taken. Raises Transient, Denied."""
        ...


class LedgerOrigin(Protocol):
    """What tells one source from another: the number of a ledger means something only within its source."""

    async def identity(self) -> str | None:
        """Return the source's own id, the same for as long as its ledgers have their numbers.

        None: it says none, so nobody can tell it from another. Raises Transient, Denied.
        """
        ...

    async def moved(self, topic: TopicName) -> str | None:
        """Say why the source's list of a topic's ledgers may not be the present one, None when nothing says so.

        Raises Transient, Denied.
        """
        ...

    async def inspected(self, topic: TopicName, ledger_id: int) -> LedgerInfo:
        """Return a ledger as whoever stores it knows it, whatever the list of its topic says, and when it was made.

        Raises NotFound, Transient, Denied, CorruptData.
        """
        ...


class LedgerDescriber(Protocol):
    """What BookKeeper knows of a ledger beside its entries; a source without BookKeeper makes up what it has not."""

    async def described(self, topic: TopicName, ledger_id: int) -> bytes:
        """Return a closed ledger's LedgerMetadataFormat as the index of a V1 object has it.

        Raises NotFound, InvalidInput for an open ledger.
        """
        ...


class BrokerOffloads(Protocol):
    """What brokers have offloaded by themselves, whether or not the source still has it."""

    async def offloaded(self, topic: TopicName) -> Sequence[LedgerInfo]:
        """Return the closed ledgers in order that a broker has offloaded as a whole, also those it then deleted.

        Raises NotFound for an unknown topic.
        """
        ...


class LedgerRegister(Protocol):
    """The word of whoever keeps a topic's ledgers about which there are; what is missing from it was deleted.

    A list of what can be read, as LedgerSource has it, is no such word.
    """

    async def listed(self, topic: TopicName) -> Collection[int]:
        """Return the ids of the topic's ledgers, readable or not, as they were after this was asked.

        Raises NotFound for a topic that does not exist for certain, Transient when nobody can say.
        """
        ...


@runtime_checkable
class ShadowTopics(Protocol):
    """A source that knows shadow topics (PIP-180): their ledgers are another topic's."""

    async def source_topic(self, topic: TopicName) -> TopicName | None:
        """Return the topic whose ledgers a shadow topic reads, None for one that is no shadow.

        Raises NotFound for an unknown topic, CorruptData, Transient.
        """
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
