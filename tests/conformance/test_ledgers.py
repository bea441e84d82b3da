"""What every ledger store must do, run against the embedded one and the one in memory."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import Closed, InvalidInput, NotFound
from offloaderd.core.model import ENTRY_BYTES_MAX, Confirmed, Position, TopicName
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat
from offloaderd.ledgers.book import RollLimits
from offloaderd.ledgers.embedded.store import EmbeddedLedgers
from offloaderd.testing import FakeClock, payloads
from offloaderd.testing.memory.ledgers import MemoryLedgers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
    from contextlib import AbstractAsyncContextManager

    from offloaderd.ledgers.port import LedgerStore

TOPIC = TopicName.parse("persistent://public/default/flights")
OTHER = TopicName.parse("persistent://public/default/a b/ü")


class Opener(Protocol):
    """Opens a new, empty store under limits."""

    def __call__(
        self, *, entries_max: int = 50_000, bytes_max: int = 1 << 30, age_max_s: float = 1e9
    ) -> AbstractAsyncContextManager[LedgerStore]:
        """Return the store as a context."""
        ...


@pytest.fixture
def clock() -> FakeClock:
    """The clock of the stores in a test."""
    return FakeClock()


@pytest.fixture(params=["memory", "embedded"])
def opener(request: pytest.FixtureRequest, clock: FakeClock) -> Opener:
    """Each kind of store."""

    @asynccontextmanager
    async def opened(
        *, entries_max: int = 50_000, bytes_max: int = 1 << 30, age_max_s: float = 1e9
    ) -> AsyncIterator[LedgerStore]:
        with tempfile.TemporaryDirectory() as folder:
            limits = {"ledger_entries_max": entries_max, "ledger_bytes_max": bytes_max}
            store = (
                MemoryLedgers(clock=clock, ledger_age_max_s=age_max_s, **limits)
                if request.param == "memory"
                else EmbeddedLedgers(
                    Path(folder),
                    clock=clock,
                    limits=RollLimits(entries_max=entries_max, bytes_max=bytes_max, age_max_s=age_max_s),
                )
            )
            async with store as entered:
                yield entered

    return opened


@pytest.fixture
async def store(opener: Opener) -> AsyncIterator[LedgerStore]:
    """A store whose ledgers never fill by themselves."""
    async with opener() as opened:
        yield opened


async def entries(
    store: LedgerStore, ledger_id: int, first: int, last: int, *, batch_bytes: int = 1 << 20
) -> list[bytes]:
    """Read a range whole, checking that its batches follow each other."""
    found: list[bytes] = []
    async for batch in store.read(TOPIC, ledger_id, first, last, batch_bytes=batch_bytes):
        assert (batch.ledger_id, batch.first_entry_id) == (ledger_id, first + len(found))
        assert batch.payloads
        found += batch.payloads
    return found


async def everything(store: LedgerStore) -> list[bytes]:
    """Read all ledgers of the topic in order."""
    found: list[bytes] = []
    for ledger in await store.ledgers(TOPIC):
        found += await entries(store, ledger.ledger_id, 0, ledger.entries - 1)
    return found


async def next_of(watch: AsyncGenerator[None, None]) -> None:
    """Wait for the next wake-up, as a coroutine that can be a task."""
    await anext(watch)


async def test_a_new_store_knows_nothing(store: LedgerStore) -> None:
    """Nothing is listed, and asking for what is not there is NotFound."""
    assert list(await store.topics()) == []
    with pytest.raises(NotFound, match="unknown topic"):
        await store.ledgers(TOPIC)
    with pytest.raises(NotFound, match="unknown topic"):
        await store.roll(TOPIC)


async def test_a_store_says_which_it_is(opener: Opener) -> None:
    """By one id for good, and that its lists are the present ones."""
    async with opener() as store:
        first = await store.identity()
        assert first
        assert await store.identity() == first
        assert await store.moved(TOPIC) is None


async def test_created_topics_are_listed_in_name_order(store: LedgerStore) -> None:
    """Creating is idempotent, gives no ledger, and odd names come back as they were."""
    for topic in (TOPIC, OTHER, TOPIC):
        await store.create(topic)
    assert list(await store.topics()) == sorted([TOPIC, OTHER], key=str)
    assert list(await store.ledgers(TOPIC)) == []
    await store.roll(TOPIC)
    assert list(await store.ledgers(TOPIC)) == []


async def test_topics_are_listed_by_tenant_and_namespace(store: LedgerStore) -> None:
    """The list can be narrowed, and no topic of users is reserved."""
    elsewhere = [TopicName("acme", "eu", "a"), TopicName("acme", "us", "b"), TopicName("public", "eu", "c")]
    for topic in (TOPIC, *elsewhere):
        await store.create(topic)
    assert list(await store.topics(tenant="acme")) == elsewhere[:2]
    assert list(await store.topics(tenant="acme", namespace="us")) == [elsewhere[1]]
    assert list(await store.topics(tenant="nobody")) == []
    assert await store.reserved(TOPIC) is None


async def test_appended_entries_come_back_in_order(store: LedgerStore) -> None:
    """Positions are consecutive and every payload is what was appended, the empty one too."""
    written = [*payloads(5), b"", *payloads(3, 2000, first_entry_id=6)]
    assert await store.append(TOPIC, written[:5]) == Position(0, 4)
    assert await store.append(TOPIC, written[5:]) == Position(0, 8)
    assert await everything(store) == written
    ledgers = await store.ledgers(TOPIC)
    assert [(one.entries, one.size_bytes, one.closed, one.closed_at_ms) for one in ledgers] == [(9, 6500, False, 0)]
    assert await store.confirmed(TOPIC, 0) == Confirmed(8, closed=False)


async def test_topics_do_not_mix(store: LedgerStore) -> None:
    """Ledger ids are unique over the store, and a ledger is found under its own topic only."""
    first = await store.append(TOPIC, payloads(2))
    second = await store.append(OTHER, payloads(3))
    assert first.ledger_id != second.ledger_id
    assert [one.entries for one in await store.ledgers(OTHER)] == [3]
    with pytest.raises(NotFound):
        await store.confirmed(TOPIC, second.ledger_id)
    with pytest.raises(NotFound):
        await store.length_at(TOPIC, second.ledger_id, 0)
    with pytest.raises(NotFound):
        await entries(store, second.ledger_id, 0, 0)
    await store.roll(OTHER)
    await store.delete(TOPIC, second.ledger_id)
    assert [one.entries for one in await store.ledgers(OTHER)] == [3]


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 2499), (7, 7), (1000, 1999), (999, 1000), (2499, 2499)])
async def test_any_range_can_be_read(store: LedgerStore, first: int, last: int) -> None:
    """A range within one append, over several, and at either end."""
    written = payloads(2500, 700)
    for start in (0, 1000, 2000):
        await store.append(TOPIC, written[start : start + 1000])
    assert await entries(store, 0, first, last) == written[first : last + 1]


async def test_batches_hold_about_what_was_asked(store: LedgerStore) -> None:
    """No batch is above the limit unless it is a single entry; batches are not needlessly small either."""
    written = [*payloads(100, 1000), *payloads(1, 50_000), *payloads(100, 1000)]
    await store.append(TOPIC, written[:150])
    await store.append(TOPIC, written[150:])
    sizes = [
        (batch.payload_bytes(), len(batch.payloads)) async for batch in store.read(TOPIC, 0, 0, 200, batch_bytes=10_000)
    ]
    assert all(size <= 10_000 or count == 1 for size, count in sizes)
    assert len(sizes) <= 24
    singles = [len(batch.payloads) async for batch in store.read(TOPIC, 0, 0, 9, batch_bytes=1)]
    assert singles == [1] * 10


async def test_ranges_that_cannot_be_are_refused(store: LedgerStore) -> None:
    """Reversed and negative ranges and batch sizes are InvalidInput, unwritten entries NotFound."""
    await store.append(TOPIC, payloads(3))
    for first, last in ((2, 1), (-1, 1), (-2, -1)):
        with pytest.raises(InvalidInput):
            await entries(store, 0, first, last)
    with pytest.raises(InvalidInput):
        await entries(store, 0, 0, 1, batch_bytes=0)
    for first, last in ((0, 3), (3, 3), (2**62, 2**62)):
        with pytest.raises(NotFound):
            await entries(store, 0, first, last)
    for ledger_id, entry_id in ((0, 3), (0, -1), (1, 0), (2**62, 0)):
        with pytest.raises(NotFound):
            await store.length_at(TOPIC, ledger_id, entry_id)


async def test_appends_that_cannot_be_are_refused_whole(store: LedgerStore) -> None:
    """Nothing of an append with an oversized entry, without entries, or of strings is stored."""
    largest = bytes(ENTRY_BYTES_MAX)
    for bad in ([b"ok", largest + b"x"], [], ["text"], [bytearray(b"mutable")]):
        with pytest.raises(InvalidInput):
            await store.append(TOPIC, bad)  # type: ignore[arg-type]
    assert list(await store.topics()) == []
    await store.append(TOPIC, [b"first", largest])
    assert await everything(store) == [b"first", largest]


async def test_ledgers_roll_by_entries(opener: Opener) -> None:
    """A full ledger is closed at once, and an append that crosses the limit continues in the next ones."""
    async with opener(entries_max=10) as store:
        written = payloads(25)
        assert await store.append(TOPIC, written[:10]) == Position(0, 9)
        assert [(one.entries, one.closed) for one in await store.ledgers(TOPIC)] == [(10, True)]
        assert await store.append(TOPIC, written[10:]) == Position(2, 4)
        assert [(one.entries, one.closed) for one in await store.ledgers(TOPIC)] == [(10, True)] * 2 + [(5, False)]
        assert await everything(store) == written


async def test_ledgers_roll_by_bytes(opener: Opener) -> None:
    """The entry that reaches the limit is the last one; a huge entry gets in whole."""
    async with opener(bytes_max=1000) as store:
        sizes = [400, 400, 400, 5000, 999, 1, 0, 7]
        written = [bytes([number]) * size for number, size in enumerate(sizes)]
        await store.append(TOPIC, written[:2])
        await store.append(TOPIC, written[2:])
        assert [(one.entries, one.size_bytes) for one in await store.ledgers(TOPIC)] == [
            (3, 1200),
            (1, 5000),
            (2, 1000),
            (2, 7),
        ]
        assert await everything(store) == written


async def test_ledgers_roll_by_age(opener: Opener, clock: FakeClock) -> None:
    """The first append after the age opens a new ledger; the old one says when it was closed."""
    async with opener(age_max_s=60) as store:
        await store.append(TOPIC, payloads(1))
        await clock.advance(59.9)
        assert await store.append(TOPIC, payloads(1)) == Position(0, 1)
        await clock.advance(0.1)
        assert await store.append(TOPIC, payloads(1)) == Position(1, 0)
        old, new = await store.ledgers(TOPIC)
        assert (old.closed, old.closed_at_ms, new.closed) == (True, clock.wall_ms(), False)
        await clock.advance(59.9)
        assert await store.append(TOPIC, payloads(1)) == Position(1, 1)


async def test_ledgers_roll_by_hand(store: LedgerStore, clock: FakeClock) -> None:
    """Rolling closes the ledger with entries; again, it does nothing."""
    await store.append(TOPIC, payloads(3))
    await clock.advance(5)
    await store.roll(TOPIC)
    await store.roll(TOPIC)
    assert await store.confirmed(TOPIC, 0) == Confirmed(2, closed=True)
    (ledger,) = await store.ledgers(TOPIC)
    assert (ledger.closed, ledger.entries, ledger.size_bytes, ledger.closed_at_ms) == (True, 3, 300, clock.wall_ms())
    assert await store.append(TOPIC, payloads(1)) == Position(1, 0)


async def test_closed_ledgers_can_be_deleted(store: LedgerStore) -> None:
    """A deleted ledger is gone for all, once; the others and the numbering stay."""
    for _ in range(3):
        await store.append(TOPIC, payloads(2))
        await store.roll(TOPIC)
    await store.delete(TOPIC, 2)
    await store.delete(TOPIC, 0)
    await store.delete(TOPIC, 0)
    await store.delete(TOPIC, 77)
    await store.delete(OTHER, 1)
    assert [one.ledger_id for one in await store.ledgers(TOPIC)] == [1]
    for call in (store.confirmed(TOPIC, 0), store.length_at(TOPIC, 0, 0), entries(store, 0, 0, 1)):
        with pytest.raises(NotFound):
            await call
    assert (await store.append(TOPIC, payloads(1))).ledger_id == 3
    await store.roll(TOPIC)
    for ledger_id in (1, 3):
        await store.delete(TOPIC, ledger_id)
    assert list(await store.ledgers(TOPIC)) == []
    assert list(await store.topics()) == [TOPIC]


async def test_a_closed_ledger_is_described_as_bookkeeper_would(store: LedgerStore) -> None:
    """Its index can be read by any reader of V1: length, last entry, closed; an open or unknown one has none."""
    await store.append(TOPIC, payloads(3, 10))
    with pytest.raises(InvalidInput, match="open"):
        await store.described(TOPIC, 0)
    await store.roll(TOPIC)
    described = LedgerMetadataFormat.FromString(await store.described(TOPIC, 0))
    assert (described.length, described.lastEntryId) == (30, 2)
    assert described.state == LedgerMetadataFormat.CLOSED
    assert (described.quorumSize, described.ensembleSize, described.ackQuorumSize) == (1, 1, 1)
    for topic, ledger_id in ((TOPIC, 1), (OTHER, 0)):
        with pytest.raises(NotFound):
            await store.described(topic, ledger_id)


async def test_an_open_ledger_cannot_be_deleted(store: LedgerStore) -> None:
    """The one that is written to is refused, and untouched."""
    await store.append(TOPIC, payloads(2))
    with pytest.raises(InvalidInput, match="is open"):
        await store.delete(TOPIC, 0)
    assert await everything(store) == payloads(2)


async def test_a_reader_whose_ledger_is_deleted_gets_not_found(store: LedgerStore) -> None:
    """Deleting under a reader ends it with an error, never with a silent end."""
    await store.append(TOPIC, payloads(5000, 1000))
    await store.roll(TOPIC)
    reader = store.read(TOPIC, 0, 0, 4999, batch_bytes=10_000)
    assert (await anext(reader)).first_entry_id == 0
    await store.delete(TOPIC, 0)
    with pytest.raises(NotFound, match="ledger 0"):
        async for _ in reader:
            pass


async def test_reading_goes_on_while_appending(store: LedgerStore) -> None:
    """A reader that follows `confirmed` sees a growing, gapless and correct log."""
    written = payloads(600, 3000)
    seen: list[bytes] = []

    async def append_all() -> None:
        for start in range(0, len(written), 20):
            await store.append(TOPIC, written[start : start + 20])

    async with asyncio.TaskGroup() as group:
        await store.append(TOPIC, [b"start"])
        group.create_task(append_all())
        while len(seen) < 1 + len(written):
            last = (await store.confirmed(TOPIC, 0)).last_entry_id
            if last >= len(seen):
                seen += await entries(store, 0, len(seen), last)
            await asyncio.sleep(0)  # noqa: TID251 - lets the writer run
    assert seen == [b"start", *written]


async def test_appends_side_by_side_are_all_kept(opener: Opener) -> None:
    """Callers at the same time get positions of their own, in the order of their calls."""
    async with opener(entries_max=7) as store:

        async def one(number: int) -> tuple[Position, bytes]:
            payload = f"entry {number}".encode()
            return await store.append(TOPIC, [payload]), payload

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number)) for number in range(100)]
        answers = [task.result() for task in tasks]
        assert answers == sorted(answers, key=lambda answer: answer[0])
        assert len({position for position, _ in answers}) == 100
        assert await everything(store) == [payload for _, payload in answers]


async def test_a_cancelled_append_is_stored_whole_or_not_at_all(store: LedgerStore) -> None:
    """Whoever leaves before the answer harms nobody else."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(store.append(TOPIC, [b"%d" % number] * 3)) for number in range(20)]
        await asyncio.sleep(0)  # noqa: TID251 - lets the first ones start
        for task in tasks[::2]:
            task.cancel()
    await store.append(TOPIC, [b"last"])
    found = await everything(store)
    numbers = [int(one) for one in found[:-1:3]]
    assert set(range(1, 20, 2)) <= set(numbers)
    assert numbers == sorted(numbers)
    assert found == [b"%d" % number for number in numbers for _ in range(3)] + [b"last"]


async def test_a_watch_yields_at_once_and_after_each_kind_of_change(store: LedgerStore) -> None:
    """Appending, rolling and deleting wake it; other topics do not; an unknown topic may appear."""
    watch = store.watch(TOPIC)
    await anext(watch)

    async def wakes(change: Awaitable[object]) -> bool:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(next_of(watch))
            await change
            for _ in range(10):
                await asyncio.sleep(0)  # noqa: TID251 - lets the watcher run
            woken = waiting.done()
            if not woken:
                await store.append(TOPIC, [b"wakes it for certain"])
        return woken

    assert await wakes(store.create(TOPIC))
    assert await wakes(store.append(TOPIC, payloads(1)))
    assert await wakes(store.roll(TOPIC))
    assert not await wakes(store.roll(TOPIC))
    assert not await wakes(store.append(OTHER, payloads(1)))
    await store.roll(TOPIC)
    await anext(watch)
    assert await wakes(store.delete(TOPIC, 0))


async def test_watches_coalesce_and_miss_nothing(store: LedgerStore) -> None:
    """What changes while the consumer is busy gives one wake-up, for each of two watchers."""
    watches = [store.watch(TOPIC), store.watch(TOPIC)]
    for watch in watches:
        await anext(watch)
    for _ in range(5):
        await store.append(TOPIC, payloads(1))
    async with asyncio.TaskGroup() as group:
        for watch in watches:
            await anext(watch)
            task = group.create_task(next_of(watch))
            for _ in range(10):
                await asyncio.sleep(0)  # noqa: TID251 - lets the watcher run
            assert not task.done()
        await store.append(TOPIC, payloads(1))


async def test_a_watcher_may_leave(store: LedgerStore) -> None:
    """Closing the iterator ends it; the store goes on."""
    watch = store.watch(TOPIC)
    async for _ in watch:
        break
    await watch.aclose()
    await store.append(TOPIC, payloads(1))
    assert await everything(store) == payloads(1)


async def test_a_closed_store_refuses_everything(opener: Opener) -> None:
    """Calls and watches raise Closed instead of hanging."""
    async with opener() as store:
        await store.append(TOPIC, payloads(1))
        watch = store.watch(TOPIC)
        await anext(watch)
    calls = (
        store.topics(),
        store.ledgers(TOPIC),
        store.confirmed(TOPIC, 0),
        store.length_at(TOPIC, 0, 0),
        store.append(TOPIC, payloads(1)),
        store.create(TOPIC),
        store.roll(TOPIC),
        store.delete(TOPIC, 0),
        anext(store.read(TOPIC, 0, 0, 0, batch_bytes=1)),
        anext(watch),
        anext(store.watch(TOPIC)),
    )
    for call in calls:
        with pytest.raises(Closed):
            await call


sizes = st.lists(st.lists(st.integers(0, 60) | st.integers(0, 3000), min_size=1, max_size=30), max_size=8)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(appends=sizes, entries_max=st.integers(1, 40), bytes_max=st.integers(1, 9000))
async def test_the_store_agrees_with_a_naive_model(
    opener: Opener, appends: list[list[int]], entries_max: int, bytes_max: int
) -> None:
    """Whatever is appended under whatever limits: ledgers, lengths and entries are those of a list of lists."""
    ledgers: list[list[bytes]] = []
    async with opener(entries_max=entries_max, bytes_max=bytes_max) as store:
        await store.create(TOPIC)
        count = 0
        for append in appends:
            written = [payloads(1, size, first_entry_id=count + at)[0] for at, size in enumerate(append)]
            count += len(written)
            for payload in written:
                last = ledgers[-1] if ledgers else None
                if last is None or len(last) >= entries_max or sum(map(len, last)) >= bytes_max:
                    ledgers.append([])
                ledgers[-1].append(payload)
            assert await store.append(TOPIC, written) == Position(len(ledgers) - 1, len(ledgers[-1]) - 1)
        listed = await store.ledgers(TOPIC)
        assert [(one.ledger_id, one.entries, one.size_bytes) for one in listed] == [
            (number, len(ledger), sum(map(len, ledger))) for number, ledger in enumerate(ledgers)
        ]
        assert all(one.closed for one in listed[:-1])
        for number, ledger in enumerate(ledgers):
            assert await entries(store, number, 0, len(ledger) - 1, batch_bytes=2000) == ledger
            lengths = [await store.length_at(TOPIC, number, at) for at in range(len(ledger))]
            assert lengths == list(accumulate(map(len, ledger)))
