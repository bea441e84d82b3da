"""How the rows of a table lie in its files: the partition of a row, and the order of the rows of a file. Pure.

A partition is an hour, a day or a month (UTC) of one column, or there is none:

    Layout()                                       by the day of `_time`, in the partition `_day`
    Layout(partition=Partition.HOUR, time="time")  by the hour of `time`, in the partition `hour`

A row without a time is in a partition without a value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from offloaderd.core.errors import InvalidConfig

TIME = "_time"
"""The column of a table of a topic by which its rows are in partitions."""


class Partition(StrEnum):
    """The rows of one partition, by their time in UTC."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    NONE = "none"
    """All rows: the table has no partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of a table. `time`: the column of the partition; `sort`: the columns that order the rows of a file.

    The order is upwards, with the rows without a value last.
    """

    partition: Partition = Partition.DAY
    time: str = TIME
    sort: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The name of the partition: `_day` of the column `_time`, `day` of `time`; empty for none."""
        return "" if self.partition is Partition.NONE else self.time.removesuffix("time") + self.partition

    def check(self, target: str, there: str) -> None:
        """Raise InvalidConfig for a table that has another partition: files of both would be in one table."""
        if there != self.partition:
            raise InvalidConfig(
                f"{target} has the partition {there}, and not {self.partition}",
                hint="keep the partition that it has (`offloadctl tables create --partition`), or name another place",
            )
