"""offloadctl cache: what it asks, what it shows, its documents and exit codes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.protocol.v1 import cache_pb2, cache_pb2_grpc
from tests.unit.cli.conftest import Ctl
from tests.unit.cli.fake_daemon import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "persistent://public/default/orders"
MIB = 1 << 20


class Cache(cache_pb2_grpc.CacheServiceServicer):
    """Answers with what it is told."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.state = cache_pb2.CacheState(
            daemon_id="d-1",
            open=True,
            state="open",
            directory="/cache",
            used_bytes=5 * MIB,
            limit_bytes=10 * MIB,
            ranges=5,
            hits=3,
            misses=1,
            read_bytes=3 * MIB,
            written_bytes=5 * MIB,
            gets_saved=2,
            money_saved=0.5,
        )
        self.last = cache_pb2.WarmProgress(
            segments=2, segments_total=2, fetched_bytes=8 * MIB, present_bytes=MIB, gets=2, done=True
        )
        self.purged = cache_pb2.CachePurged(daemon_id="d-1", ranges=3, size_bytes=2 * MIB)

    def ShowCache(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802 - as gRPC types and names it
        """Answer with the state."""
        self.requests.append(request)
        return self.state

    def WarmCache(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802
        """Yield progress, and the end."""
        self.requests.append(request)
        yield cache_pb2.WarmProgress(segments=1, segments_total=2)
        yield self.last

    def PurgeCache(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802
        """Answer with what was deleted."""
        self.requests.append(request)
        self.purged.dry_run = request.dry_run
        return self.purged


@pytest.fixture
def cache() -> Cache:
    """What the daemon answers."""
    return Cache()


@pytest.fixture
def ctl(cache: Cache) -> Iterator[Ctl]:
    """Offloadctl, talking to it."""
    with serving(partial(cache_pb2_grpc.add_CacheServiceServicer_to_server, cache)) as address:
        yield Ctl(address)


def test_the_state_is_shown(ctl: Ctl) -> None:
    """Size, hit ratio, and what was saved."""
    answer = ctl("cache", "show")
    assert answer.code == 0
    assert [
        line.split(maxsplit=1)[-1] for line in answer.out.splitlines() if line.startswith(("requests", "saved"))
    ] == [
        "4, 75% from the disk",
        "2 GETs, 0.5000 by prices.get_1000",
    ]
    assert "5.0 MiB of 10.0 MiB, 5 ranges" in answer.out
    assert ctl("cache", "show", "--json").json["gets_saved"] == 2


def test_a_cache_that_is_set_and_not_used_is_a_failure(ctl: Ctl, cache: Cache) -> None:
    """The reason, and exit code 1; a daemon without one is no failure."""
    cache.state.open, cache.state.state = False, "it is in use by another daemon"
    answer = ctl("cache", "show")
    assert (answer.code, "NOT USED: it is in use by another daemon" in answer.out) == (1, True)
    cache.state.state = "not set"
    answer = ctl("cache", "show")
    assert (answer.code, "not set: cache.directory" in answer.out) == (0, True)


def test_a_topic_is_warmed_from_a_time_on(ctl: Ctl, cache: Cache) -> None:
    """The time is asked for, the end is shown; all of a topic without a time."""
    answer = ctl("cache", "warm", "orders", "--from-time", "1970-01-01T00:00:05Z")
    assert answer.code == 0
    assert answer.out == f"{TOPIC}: fetched 8.0 MiB with 2 GETs; 1.0 MiB was on the disk\n"
    assert (cache.requests[-1].topic, cache.requests[-1].from_time_ms) == (TOPIC, 5000)
    assert ctl("cache", "warm", "orders", "--json").json["fetched_bytes"] == 8 * MIB
    assert not cache.requests[-1].HasField("from_time_ms")


def test_what_did_not_fit_is_said(ctl: Ctl, cache: Cache) -> None:
    """Exit code 1 when not all of it is on the disk."""
    cache.last.full, cache.last.segments, cache.last.declined_bytes = True, 1, MIB
    answer = ctl("cache", "warm", "orders")
    assert answer.code == 1
    assert "1.0 MiB was not put there" in answer.out
    assert "the disk may hold no more: 1 segment" in answer.out


def test_a_topic_is_purged(ctl: Ctl, cache: Cache) -> None:
    """What was deleted, what would be, and everything without a topic."""
    answer = ctl("cache", "purge", "orders")
    assert (answer.code, answer.out) == (0, f"{TOPIC} on the disk of d-1: deleted 3 ranges, 2.0 MiB\n")
    assert (cache.requests[-1].topic, cache.requests[-1].dry_run) == (TOPIC, False)
    answer = ctl("cache", "purge", "--dry-run")
    assert (answer.code, answer.out) == (0, "everything on the disk of d-1: would delete 3 ranges, 2.0 MiB\n")
    assert (cache.requests[-1].topic, cache.requests[-1].dry_run) == ("", True)
    assert ctl("cache", "purge", "orders", "--json").json["size_bytes"] == 2 * MIB


def test_what_a_purge_left_is_a_failure(ctl: Ctl, cache: Cache) -> None:
    """Exit code 1, and where to look."""
    cache.purged.left = 2
    answer = ctl("cache", "purge")
    assert answer.code == 1
    assert "2 files could not be deleted, or came back" in answer.out
