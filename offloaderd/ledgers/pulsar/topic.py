"""One topic for its readers: its ledgers in order, and the end of the open one.

Rules: Pulsar's list has the order and the sizes of closed ledgers; BookKeeper has the state of those that the list
does not show as closed. A ledger that is not closed ends the list, whatever follows it. A deleted ledger is left out
for good, since ids are not reused.
"""

from collections.abc import Sequence
from dataclasses import replace

import structlog

from offloaderd.bookkeeper.ledger_tail import LedgerTail, TailAsker
from offloaderd.bookkeeper.metadata import LedgerMetadata, LedgerState
from offloaderd.core.errors import CorruptData, NotFound
from offloaderd.core.model import Confirmed, Edge, LedgerInfo, TopicName
from offloaderd.core.names.managed_ledgers import misplaced_ledger
from offloaderd.ledgers.pulsar.directory import Directory
from offloaderd.ledgers.pulsar.managed_ledger import ListedLedger, ManagedLedger

log = structlog.get_logger(__name__)

STILL_S = 60.0
"""How long a broker may name a ledger that is not in the list yet."""


class Topic:
    """The state of one topic, shared by its readers and watchers."""

    def __init__(self, name: TopicName, directory: Directory, asker: TailAsker) -> None:
        self.name = name
        self._directory = directory
        self._asker = asker
        self._tails: dict[int, LedgerTail] = {}
        self._edge = Edge.NEXT_WRITE
        self._placed: LedgerMetadata | None = None
        self._deleted: set[int] = set()
        self._closed_ms: dict[int, int] = {}
        self._created_ms: dict[int, int] = {}
        self._listed: tuple[ManagedLedger, int, list[LedgerInfo]] | None = None

    async def ledgers(self) -> Sequence[LedgerInfo]:
        """Return the ledgers in order, all but the last closed. Raises NotFound, CorruptData."""
        managed = await self._directory.topic(self.name)
        infos = self._closed_by_list(managed)
        begun = len(infos)
        infos = infos.copy()
        for listed in self._present(managed)[begun:]:
            info = await self._info(listed)
            if info is not None:
                infos.append(info)
                if not info.closed:
                    break
        if infos:
            infos[-1] = replace(infos[-1], listing=managed.listing)
        return infos

    async def offloaded(self) -> Sequence[LedgerInfo]:
        """Return the ledgers that a broker has offloaded as a whole, also those deleted from BookKeeper."""
        managed = await self._directory.topic(self.name)
        return [_info_of(listed) for listed in managed.ledgers if listed.offloaded is not None and _complete(listed)]

    async def confirmed(self, ledger_id: int) -> Confirmed:
        """Return how far a ledger may be read. Raises NotFound, CorruptData, Transient, Denied."""
        listed = await self._find(ledger_id)
        if _complete(listed):
            return Confirmed((listed.entries or 0) - 1, closed=True)
        metadata = await self.metadata(ledger_id)
        if metadata.last_entry_id is not None:
            return Confirmed(metadata.last_entry_id, closed=True)
        if metadata.state is LedgerState.IN_RECOVERY:
            return self.tail(ledger_id).frozen(metadata)
        return await self.tail(ledger_id).ask(metadata)

    async def readable(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """Return a ledger's metadata and the last entry that is known as confirmed without requests to bookies.

        Raises NotFound, and CorruptData where list and BookKeeper differ in a closed ledger: readers pass to the next
        ledger by the list, so entries could stay unread.
        """
        listed = await self._find(ledger_id)
        metadata = await self.metadata(ledger_id)
        known = metadata.confirmed_at_least
        if _complete(listed):
            known = (listed.entries or 0) - 1
            if metadata.last_entry_id not in {None, known} or metadata.confirmed_at_least > known:
                path = await self._directory.ledger_path(ledger_id)
                expected = f"{listed.entries} entries, as the list of {self.name} says"
                raise CorruptData(key=path, offset=0, expected=expected, found=metadata.confirmed_at_least + 1)
        tail = self._tails.get(ledger_id)
        return metadata, known if tail is None else max(known, tail.lac)

    async def metadata(self, ledger_id: int, *, fresh: bool = False) -> LedgerMetadata:
        """Return BookKeeper's metadata of one of the topic's ledgers.

        Raises NotFound for a deleted one, CorruptData for one of another topic, or without all confirmed entries.
        """
        try:
            metadata = await self._directory.ledger(ledger_id, fresh=fresh)
        except NotFound:
            self.vanished(ledger_id)
            raise
        if metadata is not self._placed:
            reason = misplaced_ledger(metadata.custom, self.name)
            if reason is not None:
                path = await self._directory.ledger_path(ledger_id)
                raise CorruptData(key=path, offset=0, expected=f"a ledger of {self.name}", found=reason)
            self._placed = metadata
        self._note(ledger_id, metadata)
        tail = self._tails.get(ledger_id)
        if metadata.last_entry_id is not None and tail is not None:
            tail.closed(metadata.last_entry_id, await self._directory.ledger_path(ledger_id))
            self._edge = self._tails.pop(ledger_id, tail).edge
        return metadata

    async def inspected(self, ledger_id: int) -> LedgerInfo:
        """Return a ledger as BookKeeper has it now. Raises NotFound, CorruptData."""
        metadata = await self._directory.ledger(ledger_id, fresh=True)
        self._note(ledger_id, metadata)
        return _by_metadata(ledger_id, metadata)

    async def standing_still(self) -> str | None:
        """Return that for STILL_S the broker has named a ledger that a fresh list lacks; None if not."""
        now_s = self._asker.clock.monotonic()
        named = [tail.overtaken for tail in self._tails.values() if tail.overtaken is not None]
        if not named or now_s - min(named)[1] < STILL_S:
            return None
        newest = max(await self._directory.listed(self.name), default=-1)
        if newest >= min(named)[0]:
            return None
        return (
            f"the broker of {self.name} writes ledger {min(named)[0]} and the list of its ledgers ends with {newest}: "
            "it stands still, as if the cluster kept its metadata elsewhere by now"
        )

    def _note(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """Remember when a ledger was made, for lists that need nothing else from BookKeeper."""
        if metadata.ctime_ms is not None and self._created_ms.get(ledger_id) != metadata.ctime_ms:
            self._created_ms[ledger_id] = metadata.ctime_ms
            self._listed = None

    def vanished(self, ledger_id: int) -> None:
        """Leave out a deleted ledger from now on."""
        if ledger_id not in self._deleted:
            log.info("source.ledger_deleted", topic=str(self.name), ledger_id=ledger_id)
        self._deleted.add(ledger_id)
        self._tails.pop(ledger_id, None)

    async def open_ledger(self) -> int | None:
        """Return the ledger that is open, None when there is none. Raises NotFound, CorruptData."""
        infos = await self.ledgers()
        return infos[-1].ledger_id if infos and not infos[-1].closed else None

    def tail(self, ledger_id: int) -> LedgerTail:
        """Return the end of an open ledger; its `edge` begins as that of the ledger before."""
        tail = self._tails.get(ledger_id)
        if tail is None:
            tail = self._tails[ledger_id] = LedgerTail(self.name, ledger_id, self._asker, edge=self._edge)
        return tail

    async def _find(self, ledger_id: int) -> ListedLedger:
        managed = await self._directory.topic(self.name)
        listed = next((listed for listed in reversed(managed.ledgers) if listed.ledger_id == ledger_id), None)
        if listed is None or _deleted_by_list(listed) or ledger_id in self._deleted:
            raise NotFound(f"no ledger {ledger_id} in {self.name}", hint="it may have been deleted")
        return listed

    def _present(self, managed: ManagedLedger) -> list[ListedLedger]:
        return [each for each in managed.ledgers if not _deleted_by_list(each) and each.ledger_id not in self._deleted]

    def _closed_by_list(self, managed: ManagedLedger) -> list[LedgerInfo]:
        """Return the first ledgers of the list that it shows as closed, cached: it changes rarely."""
        if self._listed is None or self._listed[0] is not managed or self._listed[1] != len(self._deleted):
            listed = {each.ledger_id for each in managed.ledgers}
            self._deleted &= listed
            self._created_ms = {one: at for one, at in self._created_ms.items() if one in listed}
            infos = []
            for each in self._present(managed):
                if not _complete(each):
                    break
                infos.append(_info_of(each, self._created_ms.get(each.ledger_id)))
            self._listed = (managed, len(self._deleted), infos)
        return self._listed[2]

    async def _info(self, listed: ListedLedger) -> LedgerInfo | None:
        if _complete(listed):
            return _info_of(listed, self._created_ms.get(listed.ledger_id))
        try:
            info = _by_metadata(listed.ledger_id, await self.metadata(listed.ledger_id), listed.previous)
        except NotFound:
            return None
        if info.closed:
            closed_ms = self._closed_ms.setdefault(info.ledger_id, self._asker.clock.wall_ms())
            return replace(info, closed_at_ms=listed.closed_at_ms or closed_ms)
        tail = self._tails.get(info.ledger_id)
        if tail is None:
            return info
        return replace(info, entries=max(info.entries, tail.lac + 1), size_bytes=tail.size_bytes)


def _complete(listed: ListedLedger) -> bool:
    """Whether the list alone has the sizes of a closed ledger."""
    return listed.closed and listed.entries is not None and listed.size_bytes is not None


def _deleted_by_list(listed: ListedLedger) -> bool:
    """Whether Pulsar offloaded the ledger itself and deleted it from BookKeeper."""
    return listed.offload is not None and listed.offload.bookkeeper_deleted


def _by_metadata(ledger_id: int, metadata: LedgerMetadata, previous: int | None = None) -> LedgerInfo:
    return LedgerInfo(
        ledger_id=ledger_id,
        closed=metadata.closed,
        entries=metadata.confirmed_at_least + 1,
        size_bytes=metadata.length_bytes or 0,
        previous=previous,
        created_ms=metadata.ctime_ms,
    )


def _info_of(listed: ListedLedger, created_ms: int | None = None) -> LedgerInfo:
    return LedgerInfo(
        ledger_id=listed.ledger_id,
        closed=True,
        entries=listed.entries or 0,
        size_bytes=listed.size_bytes or 0,
        closed_at_ms=listed.closed_at_ms or 0,
        offloaded=listed.offloaded,
        previous=listed.previous,
        created_ms=created_ms,
    )
