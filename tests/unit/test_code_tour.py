"""The code tour in docs/contributing.md is what one entry really meets between a bookie and its commit."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, cast

import pytest

from offloaderd.bookkeeper.connections.bookies import BookiePool
from offloaderd.core.model import Position
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from tests.pages import ROOT
from tests.unit.bookkeeper.fake_bookie import fake_bookie
from tests.unit.bookkeeper.fake_cluster import TOPIC, FakeCluster, Shape
from tests.unit.rigs.rig import Rig, enabled, until_offloaded

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from offloaderd.ledgers.port import LedgerStore

REAL_TIME = "sockets"

STATIONS_MAX = 12
_PAGE = ROOT / "docs" / "contributing.md"
_STATION = re.compile(r"(?m)^(\d+)\. `([\w/]+\.py)`: `([\w.]+)` ")


def stations() -> dict[str, tuple[str, str]]:
    """Return the file and the function of each station, by how the page names it."""
    section = _PAGE.read_text(encoding="utf-8").partition("## Code tour\n")[2].partition("\n## ")[0]
    return {f"station {number} (`{file}`: `{name}`)": (file, name) for number, file, name in _STATION.findall(section)}


def code_of(file: str, name: str) -> CodeType | None:
    """Return the code of a function that is defined in a file of the package, None if it is not."""
    try:
        module = import_module("offloaderd." + file.removesuffix(".py").replace("/", "."))
        function = attrgetter(name)(module)
    except (ImportError, AttributeError):
        return None
    code = cast("CodeType", getattr(function, "__code__", None))
    return code if function.__module__ == module.__name__ else None


def test_the_tour_is_short() -> None:
    """At most twelve stations, numbered through, and no file is visited twice."""
    files = [file for file, _ in stations().values()]
    numbers = [int(re.findall(r"\d+", station)[0]) for station in stations()]
    assert numbers == list(range(1, len(numbers) + 1)), f"{_PAGE.name}: stations are numbered {numbers}"
    assert 1 < len(files) <= STATIONS_MAX
    assert len(files) == len(set(files)), f"{_PAGE.name}: a file is visited twice: {files}"


@pytest.mark.parametrize("station", stations())
def test_a_station_exists(station: str) -> None:
    """Its function is in the file that the page names."""
    file, name = stations()[station]
    assert code_of(file, name), f"{_PAGE.name}: correct {station}: offloaderd/{file} has no function {name}"


async def test_an_entry_meets_the_stations_in_their_order() -> None:
    """By the first call of each, from the first call of the first station on."""
    tour = {code: station for station, (file, name) in stations().items() if (code := code_of(file, name))}
    first, passed = next(iter(tour)), list[str]()

    def trace(frame: FrameType, event: str, _argument: object) -> None:
        station = tour.get(frame.f_code)
        if event == "call" and station is not None and station not in passed and (passed or frame.f_code is first):
            passed.append(station)

    await _offload_one_entry(trace)
    for expected in tour.values():
        assert expected in passed, f"{_PAGE.name}: correct {expected}: an entry on its way to a commit does not meet it"
    for expected, found in zip(tour.values(), passed, strict=True):
        assert found == expected, f"{_PAGE.name}: correct {expected}: an entry meets {found} before it"


async def _offload_one_entry(trace: object) -> None:
    """Have a topic's only entry read from a bookie on loopback and committed, and each call given to `trace`."""
    rig, cluster = Rig(), FakeCluster()
    clock, metrics = rig.clock, rig.metrics
    async with fake_bookie() as bookie:
        alone = Shape(ensemble=1, write_quorum=1, ack_quorum=1, bookies=(bookie.bookie_id,))
        ledger = await cluster.ledger(alone)
        await ledger.write([b"an entry"])
        await ledger.close()
        position = Position(ledger.ledger_id, 0)
        bookie.stored[position] = cluster.bookies.stored[bookie.bookie_id][ledger.ledger_id][0]
        async with (
            BookiePool(cluster.znodes, clock=clock, metrics=metrics) as pool,
            BookKeeperLedgers(cluster.znodes, pool, clock=clock, metrics=metrics) as source,
        ):
            rig.ledgers = cast("LedgerStore", source)
            async with rig.engine() as engine:
                before = sys.getprofile()
                sys.setprofile(trace)  # type: ignore[arg-type]
                try:
                    topic = await enabled(engine, topic=TOPIC)
                    await topic.request_roll()
                    await until_offloaded(topic, position)
                finally:
                    sys.setprofile(before)
