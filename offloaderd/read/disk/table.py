"""What is on the disk, and what may go there: the budget, admission and eviction of the disk cache, without any I/O.

Rules:
- Room is reserved before a range is fetched. Files and reserved room never exceed the budget.
- While there is room, everything is admitted. Then a range needs a second request: one long scan writes nothing and
  evicts nothing.
- It replaces the least recently used ranges, and only those that were requested less often than it. One that stays
  loses a point, so that what nobody reads any more leaves in the end. Counts end at `POINTS_MAX`, for the same reason.
- Requests for what is not on the disk are remembered for as many ranges as are on the disk.

This is TinyLFU's admission (Einziger, Friedman, Manes 2017) before a list in order of use. Its window for new values is
the cache in memory: what is requested twice in a short time does not get here.
"""

from collections import OrderedDict
from collections.abc import Iterable

from offloaderd.read.disk.files import Place, Stored

POINTS_MAX = 3
"""Requests that count. More would keep what was read a hundred times last month."""
REMEMBERED_MIN = 1024
RANGE_BYTES_MIN = 256 * 1024
"""The mean size of ranges below which their number is limited, not their bytes: each takes memory in the table."""
VICTIMS_MAX = 64
"""Ranges that one range may replace. If they are too small for it, it is not admitted, and they become the most
recently used: the next one meets others."""


class Resident:
    """A range on the disk, or on its way there."""

    __slots__ = ("file_bytes", "points", "written")

    def __init__(self, file_bytes: int, points: int, *, written: bool) -> None:
        self.file_bytes = file_bytes
        self.points = points
        self.written = written


class DiskTable:
    """The ranges by place, the least recently used first. Methods return the places whose files are to be deleted."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._residents: OrderedDict[Place, Resident] = OrderedDict()
        self._requests: OrderedDict[Place, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._residents)

    def __contains__(self, place: Place) -> bool:
        return place in self._residents

    @property
    def places(self) -> list[Place]:
        """The places of all ranges, on the disk or on their way there."""
        return list(self._residents)

    @property
    def count_max(self) -> int:
        """Most ranges that are held."""
        return max(1, self.limit_bytes // RANGE_BYTES_MIN)

    def fill(self, stored: Iterable[Stored]) -> list[Place]:
        """Take over the files of an earlier daemon, the oldest first; those that do not fit are to be deleted."""
        for place, file_bytes, _ in stored:
            self._residents[place] = Resident(file_bytes, 1, written=True)
            self.used_bytes += file_bytes
        return self.shrink(self.limit_bytes)

    def shrink(self, limit_bytes: int) -> list[Place]:
        """Set another budget, of bytes and so of ranges."""
        self.limit_bytes = limit_bytes
        excess, over = self.used_bytes - limit_bytes, list[Place]()
        count = len(self._residents) - self.count_max
        for place, resident in self._residents.items():
            if excess <= 0 and len(over) >= count:
                break
            if resident.written:
                over.append(place)
                excess -= resident.file_bytes
        for place in over:
            self.remove(place)
        return over

    def find(self, place: Place) -> bool:
        """Whether a range is on the disk; counts the request."""
        resident = self._residents.get(place)
        if resident is None:
            points = self._requests.pop(place, 0)
            self._requests[place] = min(POINTS_MAX, points + 1)
            while len(self._requests) > max(REMEMBERED_MIN, len(self._residents)):
                self._requests.popitem(last=False)
            return False
        resident.points = min(POINTS_MAX, resident.points + 1)
        self._residents.move_to_end(place)
        return resident.written

    def reserve(self, place: Place, file_bytes: int, *, wanted: bool = False) -> list[Place] | None:
        """Reserve room for a range that is going to be fetched; None if it is not admitted.

        `wanted` ones need no second request, and replace what was requested no more often than twice.
        """
        if place in self._residents or file_bytes > self.limit_bytes:
            return None
        points = max(self._requests.get(place, 1), POINTS_MAX if wanted else 0)
        victims = self._victims(file_bytes, points)
        if victims is None:
            return None
        for victim in victims:
            self.remove(victim)
        self._requests.pop(place, None)
        self._residents[place] = Resident(file_bytes, 1 if wanted else points, written=False)
        self.used_bytes += file_bytes
        return victims

    def _victims(self, file_bytes: int, points: int) -> list[Place] | None:
        """Return the ranges to replace; None if one of them is worth as much as what would replace them."""
        excess = self.used_bytes + file_bytes - self.limit_bytes
        count = len(self._residents) + 1 - self.count_max
        victims: list[Place] = []
        if excess <= 0 and count <= 0:
            return victims
        if points < 2:
            return None
        rival: tuple[Place, Resident] | None = None
        for place, resident in self._residents.items():
            if not resident.written:
                continue
            if resident.points >= points:
                rival = place, resident
                break
            victims.append(place)
            excess -= resident.file_bytes
            if excess <= 0 and len(victims) >= count:
                return victims
            if len(victims) == VICTIMS_MAX:
                break
        else:
            return None
        if rival is not None:
            rival[1].points -= 1
            self._residents.move_to_end(rival[0])
        else:
            for place in victims:
                self._residents.move_to_end(place)
        return None

    def resident(self, place: Place) -> Resident | None:
        """Return what is held for a place; a range that is removed and reserved again is another one."""
        return self._residents.get(place)

    def written(self, place: Place) -> None:
        """Note that a file is complete."""
        resident = self._residents.get(place)
        if resident is not None:
            resident.written = True

    def put_back(self, place: Place, file_bytes: int) -> None:
        """Hold a range again whose file could not be deleted: it takes its room, until its turn comes again."""
        if place not in self._residents:
            self._residents[place] = Resident(file_bytes, 0, written=True)
            self.used_bytes += file_bytes

    def remove(self, place: Place) -> bool:
        """Forget a range; whether it was there."""
        resident = self._residents.pop(place, None)
        if resident is None:
            return False
        self.used_bytes -= resident.file_bytes
        return True
