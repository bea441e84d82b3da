"""Entries of Pulsar's own small ledgers, of cursors and schemas: one at a time, off the hot path.

Such a ledger is in no topic's list. The last entry of an open one counts, confirmed or not: its broker wrote it, so
what it says was true when it was written.
"""

from collections.abc import Awaitable, Callable, Sequence

from offloaderd.bookkeeper.metadata import Ensemble, LedgerMetadata
from offloaderd.bookkeeper.ports import Bookies
from offloaderd.bookkeeper.replicas import checker_for
from offloaderd.bookkeeper.wire.entry import Entry, EntryChecker
from offloaderd.bookkeeper.wire.protocol import NotHere, Reaction, reaction_to
from offloaderd.core.errors import CorruptData, NotFound, OffloaderError, Transient
from offloaderd.ledgers.pulsar import cursors
from offloaderd.ledgers.pulsar.cursors import Cursor


class InternalLedgers:
    """Reads entries of ledgers by id. `metadata` returns BookKeeper's metadata of a ledger as they are now."""

    def __init__(self, metadata: Callable[[int], Awaitable[LedgerMetadata]], bookies: Bookies) -> None:
        self._metadata = metadata
        self._bookies = bookies

    async def cursor(
        self, node: Callable[[], Awaitable[bytes | None]], *, path: str
    ) -> tuple[Cursor, OffloaderError | None] | None:
        """Return a cursor at its newest position, or as it was when its ledger began, and why; None for no cursor.

        `node` reads its node now. A ledger that is gone was given up meanwhile, unless the node still names it. Raises
        CorruptData and InvalidConfig for a node that cannot be read, and what `node` does.
        """
        before: bytes | None = None
        while (content := await node()) is not None:
            found = cursors.decode_node(content, path=path)
            if found.ledger_id is None:
                return found.cursor, None
            try:
                last = await self.last(found.ledger_id)
                if last is None:
                    return found.cursor, None
                key = f"{found.ledger_id}:{last[0]}"
                return cursors.decode_entry(last[1], key=key, texts=found.cursor.texts), None
            except (CorruptData, NotFound, Transient) as error:
                if isinstance(error, NotFound) and content != before:
                    before = content
                    continue
                return found.cursor, error
        return None

    async def entry(self, ledger_id: int, entry_id: int) -> bytes:
        """Return the payload of an entry.

        Raises NotFound without the ledger or the entry, CorruptData where every copy is bad, Transient, Denied.
        """
        metadata = await self._metadata(ledger_id)
        checker, failures = checker_for(ledger_id, metadata), _Failures(f"entry {ledger_id}:{entry_id}")
        for bookie_id in self._bookies.ordered(metadata.replicas(entry_id)):
            try:
                return checker.check(await self._bookies.read(bookie_id, ledger_id, entry_id), entry_id).payload
            except OffloaderError as error:
                failures.add(bookie_id, error)
        raise failures.conclusion()

    async def last(self, ledger_id: int) -> tuple[int, bytes] | None:
        """Return id and payload of the last stored entry; None where none was written. Raises as `entry` does."""
        metadata = await self._metadata(ledger_id)
        if metadata.last_entry_id is not None:
            last = metadata.last_entry_id
            return (last, await self.entry(ledger_id, last)) if last >= 0 else None
        for ensemble in reversed(metadata.ensembles):  # a new one has nothing before its first entry is written
            found = await self._last_of(ledger_id, metadata, ensemble)
            if found is not None:
                return found.entry_id, found.payload
        return None

    async def _last_of(self, ledger_id: int, metadata: LedgerMetadata, ensemble: Ensemble) -> Entry | None:
        """Return the last entry that any bookie of an ensemble has; None where all that answer have none."""
        checker, failures = checker_for(ledger_id, metadata), _Failures(f"the end of ledger {ledger_id}")
        found: Entry | None = None
        answered = False
        for bookie_id in self._bookies.ordered(ensemble.bookies):
            try:
                entry = await self._ask_last(bookie_id, checker)
            except OffloaderError as error:
                failures.add(bookie_id, error)
                continue
            answered = True
            if entry is not None and (found is None or entry.entry_id > found.entry_id):
                found = entry
        if not answered:
            raise failures.conclusion()
        return found

    async def _ask_last(self, bookie_id: str, checker: EntryChecker) -> Entry | None:
        known = await self._bookies.last_known(bookie_id, checker.ledger_id)
        return checker.check(known.stored, None) if known.stored is not None else None


class _Failures:
    """The errors of all bookies that were asked for one thing."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._errors: dict[str, OffloaderError] = {}

    def add(self, bookie_id: str, error: OffloaderError) -> None:
        """Note an error. Raises it if no other bookie would answer differently."""
        if reaction_to(error) is Reaction.STOP:
            raise error
        self._errors[bookie_id] = error

    def conclusion(self) -> OffloaderError:
        """Return what the errors mean together."""
        errors: Sequence[OffloaderError] = list(self._errors.values())
        reasons = "; ".join(f"{bookie_id}: {error}" for bookie_id, error in self._errors.items())
        if errors and all(isinstance(error, NotHere) for error in errors):
            return NotFound(f"no bookie has {self._what}", hint="see offloadctl doctor")
        damaged = next((error for error in errors if isinstance(error, CorruptData)), None)
        if damaged is not None and all(isinstance(error, CorruptData | NotHere) for error in errors):
            return damaged
        return Transient(f"no bookie answered with {self._what} ({reasons})", hint="see offloadctl doctor")
