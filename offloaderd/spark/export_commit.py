"""What an export has committed: the positions up to which a target holds all, kept with the data itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from offloaderd.clock import SystemClock
from offloaderd.errors import CorruptData, InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1
DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What a target holds. `source` says of what; `files` are those of the last round, by the folder of their day.

    A table of Iceberg knows its files itself. `staging` is the folder to which the round was written.
    """

    number: int
    source: dict[str, str]
    positions: dict[str, str]
    files: list[str] = field(default_factory=list)
    staging: str = ""
    rows: int = 0

    def encode(self) -> str:
        """Return the record."""
        return json.dumps({"version": VERSION, **{name: getattr(self, name) for name in self.__slots__}}, indent=1)

    def checked(self, source: Mapping[str, str], target: str) -> Commit:
        """Return itself if it is of this source. Raises InvalidConfig."""
        if self.source != source:
            told = ", ".join(f"{name} {value}" for name, value in self.source.items())
            raise InvalidConfig(f"{target} is an export of something else: {told}", hint="name another target")
        return self

    def next_name(self) -> str:
        """Return a new name for what is written of the round after this one."""
        return f"{self.number + 1:0{DIGITS}}-{SystemClock().uuid()}"


def decode(text: str, path: str) -> Commit:
    """Read a record. Raises CorruptData."""
    try:
        found = json.loads(text)
        if found.pop("version") != VERSION:
            raise CorruptData(key=path, offset=0, expected=f"version {VERSION}", found="another")
        return Commit(**found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptData(key=path, offset=0, expected="the record of a commit", found=error) from None


class ExportTarget(Protocol):
    """Where an export goes: takes the files of a round together with the positions up to which they go."""

    target: str
    """What people call it."""

    def last(self, source: dict[str, str]) -> Commit:
        """Return the last commit, number 0 for none; changes nothing.

        Raises InvalidConfig for what holds something else, CorruptData, and OffloaderError when it cannot be read.
        """
        ...

    def recover(self, source: dict[str, str]) -> Commit:
        """Return the last commit, with all that a crash has left of it finished or cleared. Raises as `last`."""
        ...

    def staging(self, last: Commit) -> str:
        """Return the URL of a new folder for the files of the round after a commit."""
        ...

    def commit(self, last: Commit, staging: str, positions: dict[str, str], rows: int) -> Commit:
        """Make what is in staging part of the target, with the positions up to which it goes.

        Raises Conflict when another export has committed since.
        """
        ...
