"""The target of an export: a folder of Parquet files by day, and a log of commits that says which belong to it.

    TARGET/day=2026-11-21/<number>-<file>.parquet     what every reader of Parquet sees
    TARGET/_offloaderd/commits/<number>.json          positions, and the files that came with them
    TARGET/_offloaderd/staging/<number>-<id>/...      what is being written; its name tells readers to pass over it

A round is written to staging, then committed by one rename of its record to the next number, which fails if there is
one, and only then moved to its place. Whoever comes next moves what a crash has left unmoved; staging is deleted with
the commit of its number. So a file is seen once, the position is committed with the data, and of two exports one is
told that the other was first.

It is Spark's own view of file systems, so whatever Spark can write to will do that renames in one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.errors import Conflict, InvalidConfig, OffloaderError
from offloaderd.spark.export_commit import DIGITS, Commit, decode
from offloaderd.spark.spark_files import SparkFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS = "_offloaderd"


class ExportFolder:
    """A target, by its path or URL."""

    def __init__(self, spark: SparkSession, target: str) -> None:
        self._files = SparkFiles(spark, target)
        self.target = self._files.root

    def last(self, source: dict[str, str]) -> Commit:
        """Return the last commit, number 0 for none.

        Raises InvalidConfig for a folder that holds something else, CorruptData, and OffloaderError when it cannot be
        read.
        """
        names = sorted(self._files.names(f"{OURS}/commits"))
        if not names:
            strangers = [name for name in self._files.names("") if name != OURS]
            if strangers:
                raise InvalidConfig(
                    f"{self.target} holds {strangers[0]}, and is no export", hint="name an empty folder"
                )
            return Commit(number=0, source=source, positions={})
        path = f"{OURS}/commits/{names[-1]}"
        return decode(self._files.read(path), self._files.url(path)).checked(source, self.target)

    def recover(self, source: dict[str, str]) -> Commit:
        """Return the last commit, with all its files in their places and nothing of it in staging. Raises as `last`."""
        last = self.last(source)
        self._move_all(last)
        self._clear(last)
        return last

    def staging(self, last: Commit) -> str:
        """Return the URL of a new folder for the round after a commit."""
        return self._files.url(f"{OURS}/staging/{last.next_name()}")

    def commit(self, last: Commit, staging: str, positions: dict[str, str], rows: int) -> Commit:
        """Make what is in staging part of the target, with the positions up to which it goes.

        Raises Conflict when another export has committed since.
        """
        here = staging.removeprefix(f"{self.target}/")
        made = Commit(
            number=last.number + 1,
            source=last.source,
            positions=positions,
            files=self._files.parquet_by_day(here),
            staging=here,
            rows=rows,
        )
        self._files.write(f"{here}/commit.json", made.encode())
        self._files.make(f"{OURS}/commits")
        if not self._files.rename_new(f"{here}/commit.json", f"{OURS}/commits/{made.number:0{DIGITS}}.json"):
            raise Conflict(
                f"another export has committed to {self.target} meanwhile",
                hint="nothing of this round was added; run one export of a target at a time",
            )
        self._move_all(made)
        self._clear(made)
        return made

    def _clear(self, made: Commit) -> None:
        """Delete the staging of all rounds up to a commit; that of the next one may be somebody's who is at work."""
        for name in self._files.names(f"{OURS}/staging"):
            if name[:DIGITS] <= f"{made.number:0{DIGITS}}":
                self._files.delete(f"{OURS}/staging/{name}")

    def _move_all(self, made: Commit) -> None:
        """Move the files of a commit to their places, as far as they are not there."""
        for name in made.files:
            day, _, file = name.partition("/")
            there = f"{day}/{made.number:0{DIGITS}}-{file}"
            if self._files.exists(there):
                continue
            self._files.make(day)
            if not self._files.move(f"{made.staging}/{name}", there):
                raise OffloaderError(
                    f"{self.target}/{made.staging}/{name}, which is committed, cannot be moved to {there}",
                    hint="if somebody deleted it, export into an empty folder",
                )
