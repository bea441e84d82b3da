"""An export's target: a folder of Parquet files by round and day, and a log of commits with their positions.

    TARGET/round=0000000007/day=2026-11-21/<file>.parquet    visible to readers of Parquet, a round at a time
    TARGET/_offloaderd/commits/<number>.json                 source and positions
    TARGET/_offloaderd/staging/<number>-<id>/...             in progress; readers ignore such names

A round is written to staging, and committed when its record gets the next free number, in one step of the file system:
a hard link or a rename of HDFS. So of two exports one gets an error. Then its folder is moved to its place in one step;
after a crash the next export does that. A folder in its place is not read again: others may delete or rewrite it.

Earlier releases had `TARGET/day=...` for all rounds. Those folders are moved into round 0, where readers find them;
before, a record without a round is committed, of a version that those releases do not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.core.errors import Conflict, InvalidConfig
from offloaderd.spark.export.commit import DIGITS, Commit, decode
from offloaderd.spark.files import SparkFiles, check_scheme

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

OURS = "_offloaderd"
COMMITS = f"{OURS}/commits"


class ExportFolder:
    """A target by its path or URL; see ExportTarget."""

    def __init__(self, spark: SparkSession, target: str) -> None:
        """Find the file system. Raises InvalidConfig for one without the steps of a commit."""
        self._files = SparkFiles(spark, target)
        self.target = self._files.root
        check_scheme(self._files.scheme, self.target)

    def last(self, source: dict[str, str]) -> Commit:
        """See ExportTarget."""
        names = sorted(name for name in self._files.names(COMMITS) if name.endswith(".json"))
        if not names:
            others = [name for name in self._files.names("") if name != OURS]
            if others:
                raise InvalidConfig(f"{self.target} holds {others[0]}, and is no export", hint="name an empty folder")
            return Commit(number=0, source=source, positions={})
        return self._record(names[-1]).checked(source, self.target)

    def recover(self, source: dict[str, str]) -> Commit:
        """See ExportTarget; the round is moved to its place."""
        last = self.last(source)
        self._finish(last)
        if days := [one for one in self._files.names("") if one.startswith("day=")]:
            # A release that would write there again refuses the target from then on, by the version of this record.
            last = self.commit(last, self.staging(last), last.positions, 0)
        for name in days:
            self._files.make(_round(0))
            self._files.move(name, f"{_round(0)}/{name}")
        return last

    def named(self, columns: StructType) -> StructType:
        """Return the columns unchanged."""
        return columns

    def staging(self, last: Commit) -> str:
        """See ExportTarget."""
        return self._files.url(f"{OURS}/staging/{last.next_name()}")

    def commit(
        self, last: Commit, staging: str, positions: dict[str, str], rows: int, apart: int | None = None
    ) -> Commit:
        """See ExportTarget."""
        made = last.following(staging.removeprefix(f"{self.target}/"), positions, rows, apart)
        own, name = f"{COMMITS}/{made.staging.rpartition('/')[2]}.new", f"{made.number:0{DIGITS}}.json"
        self._files.write(own, made.encode())
        taken = not self._files.put_new(own, f"{COMMITS}/{name}")
        self._files.delete(own)
        # A server may have done it and lost the answer: the record decides, not the result of this call.
        if taken and not self._record(name).is_same(made):
            raise Conflict(
                f"another export has committed to {self.target} meanwhile",
                hint="nothing of this round was added; run one export of a target at a time",
            )
        self._finish(made)
        return made

    def _record(self, name: str) -> Commit:
        path = f"{COMMITS}/{name}"
        return decode(self._files.read(path), self._files.url(path))

    def _finish(self, made: Commit) -> None:
        """Move a round to its place, unless it is there, and delete all other staging up to its number.

        Staging of the next number may be that of a running export.
        """
        if made.staging:
            self._files.move(made.staging, _round(made.number))
        for name in self._files.names(f"{OURS}/staging"):
            if name[:DIGITS] <= f"{made.number:0{DIGITS}}":
                self._files.delete(f"{OURS}/staging/{name}")


def _round(number: int) -> str:
    return f"round={number:0{DIGITS}}"
