"""How the rows of a table lie in its files: the partition of a row, and the order of the rows of a file. Pure.

A partition is an hour, a day or a month (UTC) of one column, or a bucket of the messages' key, or there is none:

    Layout()                                         by the day of `_time`, in the partition `_day`
    Layout(partition=Partition.HOUR, time="time")    by the hour of `time`, in the partition `hour`
    Layout(partition=Partition.BUCKET, buckets=16)   by the hash of `_key`, in the partition `_bucket`

A row without a time, or a key, is in a partition without a value.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from offloaderd.core.errors import InvalidConfig, InvalidInput

TIME = "_time"
"""The column of a table of a topic by which its rows are in partitions of a time."""
KEY = "_key"
"""The column by which they are in buckets."""
BUCKETS_MIN, BUCKETS_MAX = 2, 1024
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The value in the name of the folder of the partition without a value, as Spark writes it."""
_BUCKETS = re.compile(r"bucket:([1-9][0-9]{0,5})")


class Partition(StrEnum):
    """The rows of one partition, by their time in UTC, or by the hash of their key."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    BUCKET = "bucket"
    """Those of some keys, always the same: as the bucket transform of Apache Iceberg says."""
    NONE = "none"
    """All rows: the table has no partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of a table. `time`: the column of a partition by time; `buckets`: how many there are, else 0.

    `sort`: the columns that order the rows of a file, upwards, with the rows without a value last.
    """

    partition: Partition = Partition.DAY
    buckets: int = 0
    time: str = TIME
    sort: Sequence[str] = ()

    @property
    def column(self) -> str:
        """The column of the partition."""
        return KEY if self.partition is Partition.BUCKET else self.time

    @property
    def name(self) -> str:
        """The name of the partition: `_day` of the column `_time`, `day` of `time`, `_bucket`; empty for none."""
        if self.partition is Partition.NONE:
            return ""
        return f"{self.column.removesuffix('time').removesuffix('key')}{self.partition}"

    @property
    def transform(self) -> str:
        """The transform of Apache Iceberg that makes the partition of its column: `day`, `bucket[16]`."""
        return f"{self.partition}[{self.buckets}]" if self.partition is Partition.BUCKET else str(self.partition)

    @property
    def text(self) -> str:
        """The partition as it is declared: `day`, `bucket:16`."""
        return bucket_text(self.buckets) if self.partition is Partition.BUCKET else str(self.partition)

    def check(self, target: str, there: str) -> None:
        """Raise InvalidConfig for a table that has another partition: files of both would be in one table."""
        if there != self.text:
            raise InvalidConfig(
                f"{target} has the partition {there}, and not {self.text}",
                hint="keep the partition that it has (`offloadctl tables create --partition`), or name another place",
            )


def bucket_text(buckets: int) -> str:
    """Return how a partition by so many buckets is declared."""
    return f"{Partition.BUCKET}:{buckets}"


def parse_partition(text: str) -> tuple[Partition, int]:
    """Read a partition as it is declared: `day`, `bucket:16`; return it with its buckets, else 0. Raises InvalidInput.

    Whether there may be so many buckets, the declaration says.
    """
    if found := _BUCKETS.fullmatch(text):
        return Partition.BUCKET, int(found[1])
    others = [one.value for one in Partition if one is not Partition.BUCKET]
    if text not in others:
        raise InvalidInput(f"partition {text!r}: write {', '.join(others)} or bucket:N")
    return Partition(text), 0
