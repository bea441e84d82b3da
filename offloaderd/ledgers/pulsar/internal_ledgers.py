"""Entries of Pulsar's own small ledgers, of cursors and schemas: one at a time, off the hot path.

Such a ledger is in no topic's list. The last entry of an open one counts, confirmed or not: its broker wrote it, so
what it says was true when it was written. A recovery may drop it, though, if its broker was not told that it is
stored. What must hold after a recovery as well is said by all entries from the last one down to the first that no
recovery drops (`possible`).
"""

from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from offloaderd.bookkeeper.metadata import LedgerMetadata
from offloaderd.bookkeeper.ports import Bookies
from offloaderd.bookkeeper.replicas import checker_for
from offloaderd.bookkeeper.wire.entry import Entry, EntryChecker
from offloaderd.bookkeeper.wire.protocol import NotHere, Reaction, reaction_to
from offloaderd.core.errors import CorruptData, NotFound, OffloaderError, Transient
from offloaderd.ledgers.pulsar import cursors
from offloaderd.ledgers.pulsar.cursors import Cursor

ENDS_MAX = 100
"""Entries behind the newest confirmed one that are read; a cursor has one or two."""


class _End(NamedTuple):
    """A stored entry that may be the last one of its ledger; `lac` is the newest confirmed entry that is known of.

    `stored`: it is on as many bookies as a writer waits for. Then a recovery does not take it for missing, which write
    quorum - ack quorum + 1 of them would have to lack. So it lasts if all between the LAC and it are stored too: a
    recovery ends before the first entry that is missing.
    """

    entry_id: int
    payload: bytes
    lac: int
    stored: bool


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

        async def newest(ledger_id: int) -> Sequence[tuple[int, bytes] | None]:
            return [await self.last(ledger_id)]

        found = await self._positions(node, newest, path=path)
        return None if found is None else (found[0][0], found[1])

    async def possible(
        self, node: Callable[[], Awaitable[bytes | None]], *, path: str
    ) -> tuple[Sequence[Cursor], OffloaderError | None] | None:
        """Return a cursor at each position that it may have once its broker has crashed, the newest first.

        Usually it is one. Arguments, errors and what is returned without its ledger are those of `cursor`.
        """
        return await self._positions(node, self._ends, path=path)

    async def _positions(
        self,
        node: Callable[[], Awaitable[bytes | None]],
        entries: Callable[[int], Awaitable[Sequence[tuple[int, bytes] | None]]],
        *,
        path: str,
    ) -> tuple[Sequence[Cursor], OffloaderError | None] | None:
        """Return a cursor at the positions in some entries of its ledger. None for an entry: as its node has it."""
        before: bytes | None = None
        while (content := await node()) is not None:
            found = cursors.decode_node(content, path=path)
            if found.ledger_id is None:
                return [found.cursor], None
            try:
                return [
                    cursors.decode_entry(entry[1], key=f"{found.ledger_id}:{entry[0]}", texts=found.cursor.texts)
                    if entry is not None
                    else found.cursor
                    for entry in await entries(found.ledger_id)
                ], None
            except (CorruptData, NotFound, Transient) as error:
                if isinstance(error, NotFound) and content != before:
                    before = content
                    continue
                return [found.cursor], error
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
        found = await self._end(ledger_id, await self._metadata(ledger_id))
        return None if found is None else (found.entry_id, found.payload)

    async def _ends(self, ledger_id: int) -> list[tuple[int, bytes] | None]:
        """Return id and payload of each entry that may be the last one after a recovery, the newest first.

        None, at the end: there may be no entry. Raises as `entry` does, and Transient for more than ENDS_MAX.
        """
        metadata = await self._metadata(ledger_id)
        end = await self._end(ledger_id, metadata)
        ends: list[_End] = []
        while end is not None:
            ends.append(end)
            if end.entry_id <= end.lac + end.stored:
                break  # whatever is below it is confirmed
            if len(ends) == ENDS_MAX:
                what = f"the last {ENDS_MAX} entries of ledger {ledger_id} may be dropped by a recovery"
                raise Transient(what, hint="load its topic; see offloadctl doctor for bookies that are down")
            end = await self._end_at(ledger_id, metadata, end.entry_id - 1, end.lac) if end.entry_id else None
        lasting = len(list(takewhile(lambda one: one.stored or one.entry_id <= one.lac, reversed(ends))))
        possible = ends[: len(ends) - max(0, lasting - 1)]
        return [*((one.entry_id, one.payload) for one in possible), *(() if lasting else (None,))]

    async def _end(self, ledger_id: int, metadata: LedgerMetadata) -> _End | None:
        """Return the last stored entry; None where none was written."""
        if metadata.last_entry_id is not None:
            last = metadata.last_entry_id
            return _End(last, await self.entry(ledger_id, last), last, stored=True) if last >= 0 else None
        for ensemble in reversed(metadata.ensembles):  # a new one has nothing before its first entry is written
            known = await self._asked(ensemble.bookies, f"the end of ledger {ledger_id}", ledger_id, metadata, None)
            if known:
                last = max(entry.entry_id for entry in known)
                return _ended(metadata, [entry for entry in known if entry.entry_id == last], known)
        return None

    async def _end_at(self, ledger_id: int, metadata: LedgerMetadata, entry_id: int, lac: int) -> _End:
        """Return an entry as the end of its ledger; `lac` is what a later entry says. Raises as `entry` does."""
        what, bookies = f"entry {ledger_id}:{entry_id}", metadata.replicas(entry_id)
        copies = await self._asked(bookies, what, ledger_id, metadata, entry_id)
        end = _ended(metadata, copies, copies)
        return end._replace(lac=max(end.lac, lac))

    async def _asked(
        self, bookies: Sequence[str], what: str, ledger_id: int, metadata: LedgerMetadata, entry_id: int | None
    ) -> list[Entry]:
        """Return what each bookie that answers has of an entry; None: the last one that it has, and none is no error.

        Raises as `entry` does where none answers with the entry.
        """
        checker, failures = checker_for(ledger_id, metadata), _Failures(what)
        found: list[Entry] = []
        answered = False
        for bookie_id in self._bookies.ordered(bookies):
            try:
                if entry_id is None:
                    entry = await self._ask_last(bookie_id, checker)
                else:
                    entry = checker.check(await self._bookies.read(bookie_id, ledger_id, entry_id), entry_id)
            except OffloaderError as error:
                failures.add(bookie_id, error)
                continue
            answered = True
            if entry is not None:
                found.append(entry)
        if not answered:
            raise failures.conclusion()
        return found

    async def _ask_last(self, bookie_id: str, checker: EntryChecker) -> Entry | None:
        known = await self._bookies.last_known(bookie_id, checker.ledger_id)
        return checker.check(known.stored, None) if known.stored is not None else None


def _ended(metadata: LedgerMetadata, copies: Sequence[Entry], known: Sequence[Entry]) -> _End:
    """Return an entry by its copies, each on another bookie; `known` are all entries whose LAC counts."""
    lac = max(metadata.confirmed_at_least, *(entry.lac for entry in known))
    return _End(copies[0].entry_id, copies[0].payload, lac, stored=len(copies) >= max(1, metadata.ack_quorum))


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
