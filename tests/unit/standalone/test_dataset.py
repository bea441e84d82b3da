"""The data sets of the walkthrough."""

from __future__ import annotations

import json
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import InvalidConfig, OffloaderError
from offloaderd.standalone import dataset
from offloaderd.standalone.dataset import Flights, Lines, as_json, choose

if TYPE_CHECKING:
    from pathlib import Path


async def test_the_flights_are_json_with_numbers_and_nulls() -> None:
    """The first rows of the real archive, without importing its package."""
    chosen = choose(None)
    assert (chosen.name, chosen.total_entries) == ("flights", 336_776)
    batches = chosen.batches()
    first = await anext(aiter(batches))
    await batches.aclose()  # type: ignore[attr-defined]
    assert dataset.PACKAGE not in sys.modules
    assert len(first) == dataset.ROWS_A_BATCH
    assert json.loads(first[0]) == {
        "year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2, "arr_time": 830,
        "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR",
        "dest": "IAH", "air_time": 227, "distance": 1400, "hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z",
    }  # fmt: skip
    assert any(json.loads(row)["arr_delay"] is None for row in first)
    assert all(b"\n" not in row for row in first)


def test_an_empty_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """There would be nothing to show; one with an entry is taken, and its empty lines are counted."""
    source = tmp_path / "empty"
    source.touch()
    with pytest.raises(InvalidConfig, match="is empty"):
        choose(str(source))
    source.write_text("\n\na\n")
    assert choose(str(source)).skipped == 0


def test_cells_become_what_they_mean() -> None:
    """NA and nothing are null, a text column stays text although it looks like a number, fractions are floats."""
    (row,) = as_json(["tailnum,dep_delay,distance,air_time,carrier\n", "123,-4,1.5,NA,\n"])
    assert json.loads(row) == {"tailnum": "123", "dep_delay": -4, "distance": 1.5, "air_time": None, "carrier": None}


@pytest.mark.parametrize("content", [b"no zip", None])
async def test_a_damaged_archive_is_one_clear_error(tmp_path: Path, content: bytes | None) -> None:
    """Neither zip nor the right member: the file and a way out are named."""
    path = tmp_path / "flights.csv.zip"
    if content is None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("other.csv", "a,b\n")
    else:
        path.write_bytes(content)
    with pytest.raises(OffloaderError, match="cannot read") as caught:
        await anext(aiter(Flights(path).batches()))
    assert "pip install" in caught.value.hint


def test_without_the_package_the_hint_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bring the package, or your own data."""
    monkeypatch.setattr(dataset, "PACKAGE", "no_such_package_here")
    with pytest.raises(InvalidConfig) as caught:
        choose(None)
    assert "--input" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "topic"),
    [("orders.ndjson.txt", "orders"), ("a b/c d.log", "c-d"), ("-.x", "lines"), ("\u00e9t\u00e9", "t")],
)
def test_a_files_name_becomes_a_topics_name(tmp_path: Path, name: str, topic: str) -> None:
    """Without ending, in characters that need no quotes."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("a")
    chosen = choose(str(path))
    assert isinstance(chosen, Lines)
    assert (chosen.name, chosen.title, chosen.total_entries) == (topic, str(path), None)


def test_standard_input_has_a_name_too() -> None:
    """The dash is no file."""
    chosen = choose("-")
    assert (chosen.name, chosen.title) == ("lines", "standard input")


@pytest.mark.parametrize("name", ["missing", "."])
def test_an_input_that_is_no_file_is_refused_before_the_start(tmp_path: Path, name: str) -> None:
    """Nothing is started for a path that cannot be read."""
    with pytest.raises(InvalidConfig):
        choose(str(tmp_path / name))
