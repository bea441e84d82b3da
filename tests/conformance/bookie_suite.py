"""What a bookie does, as `bookkeeper.ports.Bookies` shows it: reads, the end of a ledger, LACs, long polls, fences.

Test modules make a class of it and give it a bookie: fakes in tests/conformance, real ones in tests/integration.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import pytest

from offloaderd.bookkeeper.wire.entry import DigestType, EntryChecker
from offloaderd.bookkeeper.wire.protocol import NotHere
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Transient
from offloaderd.testing import payloads
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from offloaderd.bookkeeper.ports import Bookies

SHORT_S, LONG_S = 0.5, 250.0
"""How long a poll lasts that ends by itself, and one that something has to end within the patience of tests."""
QUIET_S = 0.3


class Ledger(Protocol):
    """An open ledger of digest CRC32C, and what its writer does."""

    ledger_id: int

    async def add(self, payload: bytes, *, lac: int) -> None:
        """Store the next entry."""
        ...

    async def tell_lac(self, lac: int) -> None:
        """Tell of a LAC without an entry."""
        ...

    async def fence(self) -> None:
        """Keep its writer out, as the first step of a recovery."""
        ...


class Shelf(Protocol):
    """One bookie and what reads it."""

    @property
    def bookie_id(self) -> str:
        """Its id."""
        ...

    @property
    def bookies(self) -> Bookies:
        """The pool that reads it."""
        ...

    async def ledger(self) -> Ledger:
        """Begin a ledger that is on this bookie alone."""
        ...

    async def restart(self) -> None:
        """Start the bookie again."""
        ...


async def reachable(shelf: Shelf) -> None:
    """Return once the bookie answers."""
    clock = SystemClock()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await shelf.bookies.last_known(shelf.bookie_id, 0)
            except Transient:
                await clock.sleep(0.1)
            else:
                return


async def written(shelf: Shelf, count: int = 5) -> tuple[Ledger, list[bytes]]:
    """Return a ledger with some entries, each with the LAC before it, and their payloads."""
    ledger, contents = await shelf.ledger(), payloads(count, 100)
    for number, payload in enumerate(contents):
        await ledger.add(payload, lac=number - 1)
    return ledger, contents


def opened(ledger: Ledger, entry_id: int, stored: bytes) -> tuple[bytes, int]:
    """Return payload and LAC of a stored entry, which has to be sound."""
    entry = EntryChecker(ledger.ledger_id, DigestType.CRC32C, b"").check(stored, entry_id)
    return entry.payload, entry.lac


async def polled(shelf: Shelf, ledger: Ledger, previous_lac: int, seconds: float = LONG_S) -> asyncio.Future[int]:
    """Send a long poll."""
    return await shelf.bookies.newer(shelf.bookie_id, ledger.ledger_id, previous_lac, seconds=seconds)


async def within_patience(answer: asyncio.Future[int]) -> int:
    """Return what a long poll brings."""
    async with asyncio.timeout(PATIENCE_S):
        return await answer


async def is_waiting(answer: asyncio.Future[int]) -> bool:
    """Say whether nothing has come for a while."""
    await asyncio.wait([answer], timeout=QUIET_S)
    return not answer.done()


class ReadSuite:
    """Reads, batches and the end of a ledger."""

    async def test_an_entry_is_what_was_stored(self, shelf: Shelf) -> None:
        """Whole, with the LAC that its writer knew; of what is not there it is said so."""
        ledger, contents = await written(shelf)
        for number, payload in enumerate(contents):
            stored = await shelf.bookies.read(shelf.bookie_id, ledger.ledger_id, number)
            assert opened(ledger, number, stored) == (payload, number - 1)
        for ledger_id, entry_id in ((ledger.ledger_id, 5), ((await shelf.ledger()).ledger_id, 0), (2**40 + 1, 0)):
            with pytest.raises(NotHere):
                await shelf.bookies.read(shelf.bookie_id, ledger_id, entry_id)

    @pytest.mark.parametrize(
        ("first", "count", "size", "read"),
        [(0, 5, 10_000, 5), (1, 2, 10_000, 2), (3, 10, 10_000, 2), (0, 5, 36 + 2 * 148, 2), (2, 5, 1, 1), (2, 5, 0, 1)],
    )
    async def test_a_batch(self, shelf: Shelf, first: int, count: int, size: int, read: int) -> None:
        """Entries in a row, as many as were asked for, are there, and fit: one in any case."""
        ledger, contents = await written(shelf)
        batch = await shelf.bookies.read_batch(
            shelf.bookie_id, ledger.ledger_id, first, count_max=count, bytes_max=size
        )
        found = [opened(ledger, number, stored)[0] for number, stored in enumerate(batch, first)]
        assert found == contents[first : first + read]

    async def test_a_batch_that_begins_where_nothing_is(self, shelf: Shelf) -> None:
        """Behind the last entry, and in a ledger without any."""
        ledger, _ = await written(shelf)
        for ledger_id, first in ((ledger.ledger_id, 5), ((await shelf.ledger()).ledger_id, 0)):
            with pytest.raises(NotHere):
                await shelf.bookies.read_batch(shelf.bookie_id, ledger_id, first, count_max=3, bytes_max=10_000)

    async def test_the_end_of_a_ledger(self, shelf: Shelf) -> None:
        """Its last entry, confirmed or not, and the greatest LAC of all that came; nothing of one that is not there."""
        ledger, contents = await written(shelf)
        stored, lac = await shelf.bookies.last_known(shelf.bookie_id, ledger.ledger_id)
        assert stored is not None
        assert (opened(ledger, 4, stored), lac) == ((contents[4], 3), 3)
        await ledger.add(b"old news", lac=1)
        stored, lac = await shelf.bookies.last_known(shelf.bookie_id, ledger.ledger_id)
        assert stored is not None
        assert (opened(ledger, 5, stored), lac) == ((b"old news", 1), 3)
        nobody = await shelf.ledger()
        assert await shelf.bookies.last_known(shelf.bookie_id, nobody.ledger_id) == (None, -1)


class TailSuite:
    """LACs that are told, long polls, fences."""

    async def test_a_lac_that_is_told(self, shelf: Shelf) -> None:
        """It counts as one in an entry, without the entry; one that is older changes nothing."""
        ledger, _ = await written(shelf)
        for told, known in ((4, 4), (2, 4)):
            await ledger.tell_lac(told)
            stored, lac = await shelf.bookies.last_known(shelf.bookie_id, ledger.ledger_id)
            assert stored is not None
            assert (opened(ledger, 4, stored)[1], lac) == (3, known)

    @pytest.mark.parametrize("how", ["entry", "told"])
    async def test_a_long_poll_waits_for_a_lac(self, shelf: Shelf, how: str) -> None:
        """The next one that is greater answers it, in an entry or without one; one that is as great does not."""
        ledger, _ = await written(shelf)
        await shelf.bookies.last_known(shelf.bookie_id, ledger.ledger_id)
        answer = await polled(shelf, ledger, 3)
        assert await is_waiting(answer)
        await ledger.add(b"as great", lac=3)
        assert await is_waiting(answer)
        await (ledger.add(b"greater", lac=5) if how == "entry" else ledger.tell_lac(5))
        assert await within_patience(answer) == 5

    async def test_a_long_poll_for_what_is_known(self, shelf: Shelf) -> None:
        """It is answered at once by a bookie that was asked for the ledger's end before."""
        ledger, _ = await written(shelf)
        await shelf.bookies.last_known(shelf.bookie_id, ledger.ledger_id)
        assert await within_patience(await polled(shelf, ledger, 2)) == 3

    async def test_a_long_poll_ends(self, shelf: Shelf) -> None:
        """With the LAC as it is, which is not greater."""
        ledger, _ = await written(shelf)
        await shelf.bookies.last_known(shelf.bookie_id, ledger.ledger_id)
        assert await within_patience(await polled(shelf, ledger, 3, SHORT_S)) == 3

    async def test_a_long_poll_of_what_is_not_there(self, shelf: Shelf) -> None:
        """Nothing is known, which is said at once: nobody waits for a ledger."""
        ledger = await shelf.ledger()
        assert await within_patience(await polled(shelf, ledger, -1)) == -1

    async def test_long_polls_side_by_side(self, shelf: Shelf) -> None:
        """All who wait for a LAC are answered by it; one that was given up is nobody's."""
        ledger, _ = await written(shelf)
        await shelf.bookies.last_known(shelf.bookie_id, ledger.ledger_id)
        answers = [await polled(shelf, ledger, 3) for _ in range(3)]
        answers.pop().cancel()
        await ledger.add(b"next", lac=4)
        assert [await within_patience(answer) for answer in answers] == [4, 4]

    async def test_a_long_poll_of_a_bookie_that_was_started_again(self, shelf: Shelf) -> None:
        """It remembers nothing until it is asked for the end of the ledger: then it answers as before."""
        ledger, _ = await written(shelf)
        await shelf.bookies.last_known(shelf.bookie_id, ledger.ledger_id)
        await shelf.restart()
        stored, lac = await shelf.bookies.last_known(shelf.bookie_id, ledger.ledger_id)
        assert stored is not None
        answer = await polled(shelf, ledger, lac)
        await ledger.add(b"next", lac=4)
        assert await within_patience(answer) == 4

    async def test_a_fenced_ledger(self, shelf: Shelf) -> None:
        """All that was stored is read as before; its long polls end at their time at the latest: real ones then."""
        ledger, contents = await written(shelf)
        await shelf.bookies.last_known(shelf.bookie_id, ledger.ledger_id)
        before = await polled(shelf, ledger, 3, SHORT_S)
        await ledger.fence()
        assert await within_patience(before) == 3
        assert await within_patience(await polled(shelf, ledger, 3, SHORT_S)) == 3
        stored = await shelf.bookies.read(shelf.bookie_id, ledger.ledger_id, 4)
        assert opened(ledger, 4, stored) == (contents[4], 3)
