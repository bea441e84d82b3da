"""Whatever bookies hold and however they fail: every entry once and in order, or an error that says why not."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from offloaderd.bookkeeper.replicas import ROUNDS, MissingEntry, UnsoundEntry
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire.entry import DigestType
from offloaderd.core.errors import OffloaderError, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from offloaderd.testing import FakeClock
from tests.unit.bookkeeper.clockwork import in_time
from tests.unit.bookkeeper.fake_cluster import ALL, TOPIC, FakeCluster, Shape
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.bookkeeper.fake_cluster import FakeLedger


@dataclass(frozen=True, slots=True)
class Case:
    """A ledger, what is wrong with it, and what is asked for."""

    shape: Shape
    sizes: list[int]
    changes: list[int]
    lost: set[tuple[int, int]]
    spoilt: set[tuple[int, int]]
    faults: dict[str, str]
    flapping: list[bool] = field(repr=False)
    batch_bytes: int
    first: int
    last: int


@st.composite
def cases(draw: Callable[..., Any]) -> Case:
    """Draw a case: ensembles of 1 to 3, up to 40 entries, up to two changes of the ensemble."""
    write_quorum = draw(st.integers(1, 3))
    ensemble = draw(st.integers(write_quorum, 3))
    shape = Shape(
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=draw(st.integers(1, write_quorum)),
        digest=draw(st.sampled_from([DigestType.CRC32C, DigestType.HMAC])),
        password=b"pw",
    )
    sizes = draw(st.lists(st.integers(0, 300), min_size=1, max_size=40))
    places = st.tuples(st.integers(0, len(sizes) - 1), st.integers(0, write_quorum - 1))
    first = draw(st.integers(0, len(sizes) - 1))
    return Case(
        shape=shape,
        sizes=sizes,
        changes=sorted(draw(st.sets(st.integers(1, 39), max_size=2))),
        lost=draw(st.sets(places, max_size=8)),
        spoilt=draw(st.sets(places, max_size=8)),
        faults=draw(
            st.dictionaries(
                st.sampled_from(ALL), st.sampled_from(["down", "frozen", "old", "busy", "avoided"]), max_size=2
            )
        ),
        flapping=draw(st.lists(st.booleans(), max_size=30)),
        batch_bytes=draw(st.sampled_from([1, 500, 1 << 20])),
        first=first,
        last=draw(st.integers(first, len(sizes) - 1)),
    )


async def written(cluster: FakeCluster, case: Case) -> FakeLedger:
    """Write the ledger and do to it what the case says."""
    ledger = await cluster.ledger(case.shape)
    for number, size in enumerate(case.sizes):
        if number in case.changes:
            turn = case.changes.index(number) + 1
            await ledger.next_ensemble(ALL[turn : turn + case.shape.ensemble])
        await ledger.write([bytes([number]) * size])
    await ledger.close()
    for entry_id, place in case.spoilt:
        ledger.spoil(ledger.metadata.replicas(entry_id)[place], entry_id, 33)
    for entry_id, place in case.lost:
        ledger.lose(ledger.metadata.replicas(entry_id)[place], entry_id)
    for bookie_id, fault in case.faults.items():
        getattr(cluster.bookies, fault).add(bookie_id)
    flaps, failed = iter(case.flapping), Counter[int]()

    def flap(_operation: str, bookie_id: str, entry_id: int) -> None:
        # Not more often than there are rounds: the reader gives up then, and is right to.
        if next(flaps, False) and failed[entry_id] < ROUNDS:
            failed[entry_id] += 1
            raise Transient(f"{bookie_id} has a moment")

    cluster.bookies.on_request = flap
    return ledger


def first_error(case: Case, ledger: FakeLedger) -> tuple[int, type[OffloaderError]] | None:
    """Return the first entry of the range that cannot be had, and what has to be said of it."""
    for entry_id in range(case.first, case.last + 1):
        said: set[str] = set()
        for place, bookie_id in enumerate(ledger.metadata.replicas(entry_id)):
            if case.faults.get(bookie_id) in {"down", "frozen", "busy"}:
                said.add("unknown")
            elif (entry_id, place) in case.lost:
                said.add("missing")
            elif (entry_id, place) in case.spoilt:
                said.add("bad")
            else:
                said.add("good")
        if "good" not in said:
            if "unknown" in said:
                return entry_id, Transient
            return entry_id, UnsoundEntry if "bad" in said else MissingEntry
    return None


@settings(max_examples=150)
@given(case=cases())
def test_every_entry_once_and_in_order_or_a_typed_error(case: Case) -> None:
    """What comes is right to the byte, it ends exactly where it has to, and for the right reason."""

    async def run() -> None:
        cluster, clock = FakeCluster(), FakeClock()
        found: list[bytes] = []
        options = BookkeeperSettings(requests_in_flight_max=8)
        async with BookKeeperLedgers(
            cluster.znodes, cluster.bookies, clock=clock, metrics=Metrics(), options=options
        ) as source:
            ledger = await written(cluster, case)

            async def read() -> None:
                async for batch in source.read(TOPIC, 7, case.first, case.last, batch_bytes=case.batch_bytes):
                    assert batch.first_entry_id == case.first + len(found)
                    found.extend(batch.payloads)

            error: OffloaderError | None = None
            try:
                await in_time(clock, _with_deadlines(read(), cluster, clock), seconds_max=1000)
            except OffloaderError as raised:
                error = raised
            assert found == ledger.payloads[case.first : case.first + len(found)]
            failure = first_error(case, ledger)
            if failure is None:
                assert error is None, error
                assert len(found) == case.last - case.first + 1
            else:
                entry_id, kind = failure
                assert case.first + len(found) <= entry_id
                assert isinstance(error, kind) or (any(case.flapping) and isinstance(error, Transient)), error
                if not isinstance(error, Transient):
                    assert f"entry {entry_id}" in str(error)
                    assert case.first + len(found) == entry_id
        assert cluster.bookies.in_flight == 0

    virtually(run())


async def _with_deadlines(work: Any, cluster: FakeCluster, clock: FakeClock) -> None:  # noqa: ANN401 - a coroutine
    """Do some work while the requests of frozen bookies fail by their deadline, as the pool's do."""

    async def fail() -> None:
        await clock.sleep(5)
        cluster.bookies.down |= cluster.bookies.frozen
        cluster.bookies.thaw()

    async with asyncio.TaskGroup() as group:
        deadline = group.create_task(fail())
        await work
        deadline.cancel()
