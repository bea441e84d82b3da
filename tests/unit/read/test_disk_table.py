"""What is admitted to the disk and what leaves it: the budget, long scans, and what is read again and again."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from offloaderd.read.disk.files import OWNER_BYTES, Stored, place_of
from offloaderd.read.disk.table import POINTS_MAX, RANGE_BYTES_MIN, VICTIMS_MAX, DiskTable

SIZE = 1 << 20
OWNER = bytes(OWNER_BYTES)


def place(number: int) -> bytes:
    """Return the place of a block."""
    return place_of(OWNER, "bucket", "key", number * SIZE, SIZE)


def request(table: DiskTable, number: int) -> bool:
    """Read a block as a reader does: from the disk, else fetched, and written if admitted; whether it was there."""
    if table.find(place(number)):
        return True
    if table.reserve(place(number), SIZE) is not None:
        table.written(place(number))
    return False


def on_disk(table: DiskTable, numbers: range) -> int:
    """Return how many of these blocks are on the disk."""
    return sum(place(number) in table for number in numbers)


def test_everything_is_admitted_while_there_is_room() -> None:
    """A first read fills the disk, and the second one has all of it there."""
    table = DiskTable(100 * SIZE)
    assert not any(request(table, number) for number in range(100))
    assert table.used_bytes == 100 * SIZE
    assert all(request(table, number) for number in range(100))


def test_a_long_scan_writes_nothing_and_evicts_nothing() -> None:
    """On a full disk, blocks that are read once are not admitted, however many they are; even without a hit between."""
    table = DiskTable(100 * SIZE)
    for number in range(100):
        request(table, number)
    admitted = [table.reserve(place(number), SIZE) for number in range(1000, 11_000) if not table.find(place(number))]
    assert len(admitted) == 10_000
    assert set(map(type, admitted)) == {type(None)}
    assert on_disk(table, range(100)) == 100


def test_what_is_read_twice_replaces_what_was_read_once() -> None:
    """A second read of other blocks is written, the third has them; what the first scan left there goes."""
    table = DiskTable(100 * SIZE)
    for number in range(100):
        request(table, number)
    for _ in range(2):
        assert not any(request(table, number) for number in range(500, 540))
    assert all(request(table, number) for number in range(500, 540))
    assert on_disk(table, range(100)) == 60
    assert table.used_bytes == 100 * SIZE


def test_a_repeated_scan_of_more_than_the_disk_keeps_its_hits() -> None:
    """Twice the budget, read again and again in order: half of it stays. By the order of use alone, nothing would."""
    table = DiskTable(100 * SIZE)
    hits = [sum(request(table, number) for number in range(200)) for _ in range(10)]
    assert hits[0] == 0
    assert min(hits[4:]) >= 80


def test_what_nobody_reads_any_more_leaves() -> None:
    """Blocks that were read a hundred times give way to others within a few reads of these."""
    table = DiskTable(100 * SIZE)
    for _ in range(100):
        for number in range(100):
            request(table, number)
    for _ in range(POINTS_MAX + 3):
        for number in range(500, 600):
            request(table, number)
    assert on_disk(table, range(500, 600)) >= 90


def test_wanted_ranges_do_not_wait_for_a_second_request() -> None:
    """What an operator asks for replaces what is read rarely, not what is read often."""
    table = DiskTable(4 * SIZE)
    for number in range(4):
        request(table, number)
    for _ in range(POINTS_MAX):
        request(table, 0)
    for number in range(10, 16):
        if table.reserve(place(number), SIZE, wanted=True) is not None:
            table.written(place(number))
    assert place(0) in table
    assert on_disk(table, range(10, 16)) == 3


def test_small_ranges_are_limited_by_their_number() -> None:
    """Chunks of 64 KiB take as much memory in the table as blocks, so their number has a limit."""
    table = DiskTable(100 * SIZE)
    for number in range(1000):
        if table.reserve(place(number), 1000) is not None:
            table.written(place(number))
    assert len(table) == table.count_max == 100 * SIZE // RANGE_BYTES_MIN


def test_a_smaller_budget_deletes_the_oldest_files() -> None:
    """Files of an earlier daemon with more room: the newest stay."""
    table = DiskTable(3 * SIZE)
    over = table.fill([Stored(place(number), SIZE, number) for number in range(5)])
    assert over == [place(0), place(1)]
    assert table.used_bytes == 3 * SIZE
    assert table.find(place(4))


def test_a_range_under_way_is_no_victim() -> None:
    """Room that is reserved stays so; a range greater than the budget is not admitted."""
    table = DiskTable(2 * SIZE)
    assert table.reserve(place(0), SIZE) == []
    assert table.reserve(place(1), SIZE) == []
    assert not table.find(place(0)), "not written yet"
    for _ in range(5):
        table.find(place(2))
    assert table.reserve(place(2), SIZE) is None
    assert table.reserve(place(0), SIZE) is None
    table.written(place(0))
    assert table.reserve(place(3), 3 * SIZE) is None
    assert table.reserve(place(2), SIZE) in (None, [place(0)])


def test_a_large_range_replaces_as_many_as_it_takes() -> None:
    """Before and after it the files are within the budget."""
    table = DiskTable(4 * SIZE)
    for number in range(4):
        request(table, number)
    assert table.reserve(place(10), 3 * SIZE, wanted=True) == [place(0), place(1), place(2)]
    assert table.used_bytes == 4 * SIZE


def test_small_files_in_a_row_do_not_stop_admission() -> None:
    """More small files than one range may replace (tables of many segments) are least recently used: others replace."""
    table = DiskTable(100 * SIZE)
    for number in range(1000, 1000 + 2 * VICTIMS_MAX):
        assert table.reserve(place(number), 2000) == []
        table.written(place(number))
    for number in range(99):
        request(table, number)
    for _ in range(3):
        for number in range(500, 520):
            request(table, number)
    assert on_disk(table, range(500, 520)) == 20


def test_a_smaller_budget_limits_the_number_as_well() -> None:
    """Small files of an earlier daemon with more room: with all of them, nothing would be admitted any more."""
    table = DiskTable(SIZE)
    over = table.fill([Stored(place(number), 1000, number) for number in range(500)])
    assert len(table) == table.count_max == SIZE // RANGE_BYTES_MIN
    assert over == [place(number) for number in range(500 - table.count_max)]
    assert not any(request(table, 1000) for _ in range(2))
    assert request(table, 1000)


class Anything(RuleBasedStateMachine):
    """Any order of calls: the budget holds, and the sum is that of what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.table = DiskTable(10 * SIZE)

    @rule(number=st.integers(0, 30))
    def find(self, number: int) -> None:
        """Request a block."""
        assert not self.table.find(place(number)) or place(number) in self.table

    @rule(number=st.integers(0, 30), size=st.integers(1, 4 * SIZE), wanted=st.booleans())
    def reserve(self, number: int, size: int, *, wanted: bool) -> None:
        """Reserve room."""
        victims = self.table.reserve(place(number), size, wanted=wanted)
        assert victims is None or not any(victim in self.table for victim in victims)

    @rule(number=st.integers(0, 30))
    def written(self, number: int) -> None:
        """Finish one."""
        self.table.written(place(number))

    @rule(number=st.integers(0, 30))
    def remove(self, number: int) -> None:
        """Drop one."""
        assert self.table.remove(place(number)) in (True, False)

    @rule(limit=st.integers(0, 20))
    def shrink(self, limit: int) -> None:
        """Change the budget; ranges under way may exceed it until they end."""
        self.table.shrink(limit * SIZE)

    @invariant()
    def adds_up(self) -> None:
        """The sum is that of the ranges, within the budget but for those under way."""
        residents = self.table._residents.values()
        assert self.table.used_bytes == sum(one.file_bytes for one in residents)
        if self.table.used_bytes > self.table.limit_bytes:
            assert not any(one.written for one in residents) or self.table.limit_bytes < 10 * SIZE


TestAnything = Anything.TestCase
