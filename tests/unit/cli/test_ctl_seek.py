"""offloadctl seek, and read from a time or a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.cli.options import ago_ms
from offloaderd.protocol.v1 import common_pb2, read_pb2
from offloaderd.testing import FakeClock
from tests.unit.cli.fake_daemon import at

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Ctl
    from tests.unit.cli.fake_daemon import FakeDaemon

FOUND = read_pb2.SeekResponse(
    answer=read_pb2.SEEK_ANSWER_BLOCK,
    position=at(7, 4),
    time_ms=1_795_255_200_123,
    index=1_000_001,
    sequence=4_711,
    tier=common_pb2.TIER_OBJECTS,
    gets=1,
    get_bytes=1 << 20,
    tables=2,
)
NOTHING = read_pb2.SeekResponse(answer=read_pb2.SEEK_ANSWER_NOTHING, position=at(7, 5), source_reads=3)


def test_seek_shows_the_entry_and_what_it_took(ctl: Ctl, fake: FakeDaemon) -> None:
    """Position, time, numbers, tier and reads, for people."""
    fake.sought = FOUND
    answer = ctl("seek", "orders", "--index", "1000000")
    assert answer.code == 0
    assert fake.requests[0].target == read_pb2.SeekTarget(index=1_000_000)
    for text in ("7:4", "2026-11-21 10:00:00", "1795255200123 ms", "1,000,001", "4,711", "objects", "1.0 MiB"):
        assert text in answer.out
    assert "2 manifests, 1 GET of 1.0 MiB" in answer.out


def test_seek_as_json(ctl: Ctl, fake: FakeDaemon) -> None:
    """Everything by name; what is not known is null."""
    fake.sought = FOUND
    assert ctl("seek", "orders", "--sequence", "4711", "--json").json == {
        "topic": "persistent://public/default/orders",
        "sequence": 4711,
        "found": True,
        "position": "7:4",
        "time_ms": 1_795_255_200_123,
        "message_index": 1_000_001,
        "entry_sequence": 4711,
        "tier": "objects",
        "answered_by": "block",
        "gets": 1,
        "get_bytes": 1 << 20,
        "tables": 2,
        "source_reads": 0,
    }
    fake.sought = NOTHING
    answer = ctl("seek", "orders", "--time", "5", "--json")
    assert answer.code == 4
    assert {key: answer.json[key] for key in ("found", "position", "time_ms", "tier", "answered_by")} == {
        "found": False,
        "position": "7:5",
        "time_ms": None,
        "tier": None,
        "answered_by": "nothing",
    }


def test_nothing_yet_says_where_the_next_may_come(ctl: Ctl, fake: FakeDaemon) -> None:
    """And that an empty topic has nothing at all; exit code 4."""
    fake.sought = NOTHING
    answer = ctl("seek", "orders", "--time", "5")
    assert (answer.code, "may come at 7:5" in answer.out, "3 reads of the ledger source" in answer.out) == (
        4,
        True,
        True,
    )
    fake.sought = read_pb2.SeekResponse(answer=read_pb2.SEEK_ANSWER_NOTHING)
    answer = ctl("seek", "orders", "--time", "5")
    assert (answer.code, "no entries yet" in answer.out, "nothing was read" in answer.out) == (4, True, True)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("2026-11-21T10:00:00Z", 1_795_255_200_000),
        ("2026-11-21T11:00:00+01:00", 1_795_255_200_000),
        ("2026-11-21 10:00:00", 1_795_255_200_000),
        ("2026-11-21", 1_795_219_200_000),
        ("2026-11-21T10:00:00.1239Z", 1_795_255_200_123),
        ("1795255200000", 1_795_255_200_000),
        ("0", 0),
    ],
)
def test_times_as_people_write_them(ctl: Ctl, fake: FakeDaemon, text: str, time_ms: int) -> None:
    """ISO 8601, UTC unless it says otherwise, or milliseconds; for read as well."""
    fake.sought = FOUND
    assert ctl("seek", "orders", "--time", text).code == 0
    assert fake.requests[0].target.time_ms == time_ms
    assert ctl("read", "orders", "--from-time", text).code == 0
    assert fake.requests[1].seek == read_pb2.SeekTarget(time_ms=time_ms)


def test_ago_counts_back_from_now(ctl: Ctl, fake: FakeDaemon) -> None:
    """In the units that people use, and never before 1970."""
    fake.sought = FOUND
    for text, seconds in (
        ("1500ms", 1.5),
        ("90s", 90),
        ("15min", 900),
        ("2h", 7200),
        ("1.5d", 129_600),
        ("1w", 604_800),
    ):
        assert ctl("seek", "orders", "--ago", text).code == 0
        assert ctl("seek", "orders", "--ago", "0s").code == 0
        then, now = (request.target.time_ms for request in fake.requests[-2:])
        assert abs(now - then - 1000 * seconds) < 20_000
    clock = FakeClock()
    assert ago_ms(clock, 60) == clock.wall_ms() - 60_000
    assert ago_ms(clock, 1e12) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seek", "orders"], "say what to look for"),
        (["seek", "orders", "--time", "1", "--index", "2"], "exclude each other"),
        (["seek", "orders", "--time", "1", "--ago", "2h"], "exclude each other"),
        (["seek", "orders", "--time", "yesterday"], "not a time"),
        (["seek", "orders", "--time", "1969-12-31"], "before 1970"),
        (["seek", "orders", "--time", "-5"], "not a time"),
        (["seek", "orders", "--ago", "2 fortnights"], "not a duration"),
        (["seek", "orders", "--ago", "-2h"], "not a duration"),
        (["seek", "orders", "--index", "-1"], "0<=x"),
        (["seek", "orders", "--sequence", "18446744073709551616"], "0<=x"),
        (["read", "orders", "--from-time", "1", "--from-index", "2"], "exclude each other"),
        (["read", "orders", "--from", "1:2", "--from-sequence", "2"], "--from excludes"),
    ],
)
def test_what_makes_no_sense_is_refused(ctl: Ctl, fake: FakeDaemon, words: list[str], message: str) -> None:
    """Usage errors name what is wrong, before anything is asked."""
    answer = ctl(*words)
    assert answer.code == 2
    assert message in answer.err
    assert fake.requests == []


def test_read_sends_where_to_begin(ctl: Ctl, fake: FakeDaemon) -> None:
    """By index and sequence, with the other options, and for messages too."""
    ctl("read", "orders", "--from-index", "5", "--max", "2", "--messages")
    ctl("read", "orders", "--from-sequence", "6", "--follow")
    assert fake.requests[0].seek == read_pb2.SeekTarget(index=5)
    assert (fake.requests[1].seek.sequence, fake.requests[1].follow) == (6, True)
    ctl("read", "orders")
    assert not fake.requests[2].HasField("seek")
