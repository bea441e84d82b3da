"""One ledger in the hands of a writer that can do right and wrong: `writer.LedgerWriter` makes them.

`add`, `recover` and `close` keep to BookKeeper's protocol. The rest does one thing each, as it is told: entries with a
wrong LAC, length or digest, on chosen replicas or on none, fences, ensembles changed and members swapped.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from offloaderd.bookkeeper.metadata import Ensemble, LedgerMetadata, LedgerState
from offloaderd.bookkeeper.wire.entry import ENTRY_HEADER, DigestType
from tests.real.bookie_link import LOST, Answer
from tests.unit.bookkeeper.entries import digest, master_key, package

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.real.bookie_link import Answered, BookieLinks
    from tests.real.ledger_nodes import LedgerNode

WINDOW: Final = 64
LAC_HEADER = struct.Struct(">qq")
"""Ledger and LAC: the head of an explicit LAC (WIRE.md, section 5)."""
ANSWER_S: Final = 90.0
"""How long bookies may take to acknowledge an entry."""


class Refused(Exception):
    """Too few bookies did what they were told; `codes` has what they said, in the order they were asked."""

    def __init__(self, what: str, codes: Sequence[int]) -> None:
        super().__init__(f"{what}: bookies answered {list(codes)}")
        self.codes = tuple(codes)


def flipped(stored: bytes) -> bytes:
    """Return a stored entry whose payload (or, without one, digest) is not what the digest says: its last bit."""
    return stored[:-1] + bytes([stored[-1] ^ 1])


class WrittenLedger:
    """A ledger and where its writer is: next entry, payload bytes so far, last confirmed entry (LAC)."""

    def __init__(self, node: LedgerNode, links: BookieLinks) -> None:
        self._node = node
        self._links = links
        self.ledger_id = node.ledger_id
        self.digest_type = node.metadata.digest_type or DigestType.CRC32
        self.password = node.metadata.password
        self.lac = node.metadata.confirmed_at_least
        """Last entry that the writer knows to be acknowledged, with all before it; -1 for none."""
        self.next_entry_id = self.lac + 1
        self.length = node.metadata.length_bytes or 0
        """Payload bytes up to the last entry that was sent."""

    @property
    def metadata(self) -> LedgerMetadata:
        """What the writer has last written to, or read from, the ledger's node."""
        return self._node.metadata

    @property
    def path(self) -> str:
        """Where its node is."""
        return self._node.path

    async def add(self, payloads: Iterable[bytes], *, window: int = WINDOW) -> None:
        """Add entries with up to `window` unacknowledged at a time; returns once all are. Raises Refused.

        Each carries the LAC that was known when it was sent: with one at a time that of its predecessor, in a burst
        one from before it, and the last ones of a burst stay hidden from readers.
        """
        in_flight: deque[tuple[int, list[Answered]]] = deque()
        for payload in payloads:
            if len(in_flight) == window:
                await self._acknowledged(*in_flight.popleft())
            entry_id = self.next_entry_id
            stored = self._packaged(payload)
            in_flight.append((entry_id, await self._sent(entry_id, stored, self.metadata.replicas(entry_id))))
        while in_flight:
            await self._acknowledged(*in_flight.popleft())

    async def put(
        self,
        payload: bytes,
        *,
        entry_id: int | None = None,
        lac: int | None = None,
        length: int | None = None,
        to: Sequence[str] | None = None,
        spoil: Callable[[bytes], bytes] = bytes,
    ) -> None:
        """Store one entry as told: by default the next one, soundly, on its write quorum. Raises Refused.

        `to`: the bookies that get it; the others have a hole. `spoil` changes what is stored. `self.lac` stays as it
        is. To give replicas different bytes put the same `entry_id` twice.
        """
        at = self.next_entry_id if entry_id is None else entry_id
        if at < self.next_entry_id and length is None:
            raise ValueError(f"say the length at entry {at}: it has been passed")
        stored = spoil(self._packaged(payload, entry_id=at, lac=lac, length=length))
        bookies = self.metadata.replicas(at) if to is None else to
        await self._all(f"put entry {at}", await self._sent(at, stored, bookies))

    def skip(self, count: int = 1) -> None:
        """Leave a hole: the next entries are on no bookie."""
        self.next_entry_id += count

    async def tell_lac(self, lac: int | None = None) -> None:
        """Tell the write quorum of the LAC explicitly, as a writer with `explicitLacInterval` does. Raises Refused."""
        told = self.lac if lac is None else lac
        head = LAC_HEADER.pack(self.ledger_id, told)
        body = head + digest(self.digest_type, head, self.password)
        links = [await self._links.to(bookie, v3=True) for bookie in self.metadata.replicas(max(told, 0))]
        key = master_key(self.password)
        await self._all("explicit LAC", [link.write_lac(self.ledger_id, told, key, body) for link in links])

    async def change(self, **changes: Any) -> None:  # noqa: ANN401 - any field of LedgerMetadata
        """Rewrite the ledger's node with some fields changed, sound or not. Raises Conflict, NotFound."""
        await self._node.change(**changes)

    async def close(self, *, last_entry_id: int | None = None, length: int | None = None) -> None:
        """Close it after the last acknowledged entry, or where told. Raises Conflict when somebody else changed it."""
        last = self.lac if last_entry_id is None else last_entry_id
        await self.change(
            state=LedgerState.CLOSED,
            last_entry_id=last,
            length_bytes=self.length if length is None else length,
        )

    async def delete(self) -> None:
        """Delete it, as retention does. Bookies go on serving it until they collect garbage."""
        await self._node.delete()

    async def fence(self) -> int:
        """Have every bookie of the last ensemble refuse adds from now on; returns the greatest LAC that they know.

        Raises Refused when none answers.
        """
        answers = await self._asked(self.metadata.ensembles[-1].bookies, -1, fence=True)
        lacs: list[int] = [ENTRY_HEADER.unpack_from(answer.body)[2] for answer in answers if answer.code == 0]
        if all(answer.code == LOST for answer in answers):
            raise Refused("fence", [answer.code for answer in answers])
        return max(self.metadata.confirmed_at_least, *lacs)

    async def recover(self) -> None:
        """Take the ledger over as another client does: fence it, save what is stored beyond its LAC, close it.

        Raises Conflict, Refused.
        """
        if self.metadata.state is LedgerState.OPEN:
            await self.change(state=LedgerState.IN_RECOVERY)
        self.lac = await self.fence()
        self.length = await self._length_at(self.lac)
        self.next_entry_id = self.lac + 1
        while (found := await self._stored(self.next_entry_id)) is not None:
            entry_id = self.next_entry_id
            stored = self._packaged(self._opened(found)[0])
            replicas = self.metadata.replicas(entry_id)
            await self._acknowledged(entry_id, await self._sent(entry_id, stored, replicas, recovery=True))
        await self.close()

    async def replace_bookie(self, gone: str, by: str) -> None:
        """Replace a bookie by another, as a writer does when it fails. Raises Conflict."""
        *before, last = self.metadata.ensembles
        bookies = tuple(by if bookie == gone else bookie for bookie in last.bookies)
        kept = before if last.first_entry_id == self.next_entry_id else [*before, last]
        await self.change(ensembles=(*kept, Ensemble(self.next_entry_id, bookies)))

    async def swap_bookie(self, gone: str, by: str) -> None:
        """Copy what one bookie should hold to another and put that in its place everywhere, as auto-recovery does.

        Copies carry the LAC of whoever makes them, so headers differ between replicas afterwards. Raises Conflict,
        Refused.
        """
        metadata = self.metadata
        for entry_id in range(self.next_entry_id):
            if gone in metadata.replicas(entry_id):
                stored = await self._stored(entry_id)
                if stored is not None:
                    payload, length = self._opened(stored)
                    copy = self._package(entry_id, payload, lac=self.next_entry_id - 1, length=length)
                    await self._all(f"copy of entry {entry_id}", await self._sent(entry_id, copy, [by], recovery=True))
        await self.change(
            ensembles=tuple(
                replace(part, bookies=tuple(by if bookie == gone else bookie for bookie in part.bookies))
                for part in metadata.ensembles
            )
        )

    def _packaged(
        self, payload: bytes, *, entry_id: int | None = None, lac: int | None = None, length: int | None = None
    ) -> bytes:
        """Package an entry; unless it is one that has been passed, count it."""
        at = self.next_entry_id if entry_id is None else entry_id
        if at >= self.next_entry_id:
            self.next_entry_id = at + 1
            self.length += len(payload)
        return self._package(
            at,
            payload,
            lac=self.lac if lac is None else lac,
            length=self.length if length is None else length,
        )

    def _package(self, entry_id: int, payload: bytes, *, lac: int, length: int) -> bytes:
        return package(
            self.digest_type, self.ledger_id, entry_id, payload, lac=lac, length=length, password=self.password
        )

    def _opened(self, stored: bytes) -> tuple[bytes, int]:
        """Return payload and length of a stored entry, unchecked."""
        return stored[ENTRY_HEADER.size + self.digest_type.size_bytes :], ENTRY_HEADER.unpack_from(stored)[3]

    async def _sent(
        self, entry_id: int, stored: bytes, bookies: Sequence[str], *, recovery: bool = False
    ) -> list[Answered]:
        links = [await self._links.to(bookie) for bookie in bookies]
        key = master_key(self.password)
        return [link.add(self.ledger_id, entry_id, key, stored, recovery=recovery) for link in links]

    async def _acknowledged(self, entry_id: int, answers: list[Answered]) -> None:
        """Wait until an ack quorum has the entry. Raises Refused when that cannot be any more."""
        quorum = self.metadata.ack_quorum
        async with asyncio.timeout(ANSWER_S):
            while True:
                codes = [answer.result().code for answer in answers if answer.done()]
                if codes.count(0) >= quorum:
                    self.lac = max(self.lac, entry_id)
                    return
                if len(answers) - len(codes) + codes.count(0) < quorum:
                    raise Refused(f"add entry {entry_id} of ledger {self.ledger_id}", codes)
                pending = [answer for answer in answers if not answer.done()]
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)

    async def _all(self, what: str, answers: Sequence[Answered]) -> None:
        """Wait for every bookie. Raises Refused unless all did it."""
        async with asyncio.timeout(ANSWER_S):
            codes = [(await answer).code for answer in answers]
        if any(codes):
            raise Refused(f"{what} of ledger {self.ledger_id}", codes)

    async def _asked(self, bookies: Sequence[str], entry_id: int, *, fence: bool = False) -> list[Answer]:
        key = master_key(self.password) if fence else None
        links = [await self._links.to(bookie) for bookie in bookies]
        answers = [link.read(self.ledger_id, entry_id, fence=key) for link in links]
        async with asyncio.timeout(ANSWER_S):
            return [await answer for answer in answers]

    async def _stored(self, entry_id: int) -> bytes | None:
        """Return an entry as the first replica that has it stores it."""
        answers = await self._asked(self.metadata.replicas(entry_id), entry_id)
        return next((answer.body for answer in answers if answer.code == 0), None)

    async def _length_at(self, entry_id: int) -> int:
        stored = await self._stored(entry_id) if entry_id >= 0 else None
        return 0 if stored is None else self._opened(stored)[1]
