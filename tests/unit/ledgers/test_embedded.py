"""What only the store on disk can do: restart, survive kill -9, refuse what is not its own, say so when it fails."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import (
    Conflict,
    CorruptData,
    Denied,
    InvalidConfig,
    NoSpace,
    NotFound,
    OffloaderError,
    Transient,
)
from offloaderd.core.model import Position, TopicName
from offloaderd.ledgers.book import RollLimits
from offloaderd.ledgers.embedded.database import RESERVE_BYTES
from offloaderd.ledgers.embedded.store import EmbeddedLedgers, EmbeddedReader
from offloaderd.testing import FakeClock, payloads
from tests.patience import PATIENCE_S
from tests.unit.ledgers import appender

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offloaderd.core.model import LedgerInfo
    from offloaderd.ledgers.book import Draft

REAL_TIME = "threads"

TOPIC = TopicName.parse("flights")
OTHER = TopicName.parse("other")


def opened(directory: Path, *, entries_max: int = 50_000, age_max_s: float = 1e9) -> EmbeddedLedgers:
    """Return a store that is not entered yet."""
    return EmbeddedLedgers(
        directory, clock=FakeClock(), limits=RollLimits(entries_max=entries_max, age_max_s=age_max_s)
    )


async def everything(store: EmbeddedLedgers, topic: TopicName = TOPIC) -> list[bytes]:
    """Read all ledgers of a topic."""
    found: list[bytes] = []
    for ledger in await store.ledgers(topic):
        reader = store.read(topic, ledger.ledger_id, 0, ledger.entries - 1, batch_bytes=1 << 20)
        found += [payload async for batch in reader for payload in batch.payloads]
    return found


async def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    """Topics, ledgers, lengths and entries are the same after closing and opening, and numbering goes on."""
    async with opened(tmp_path, entries_max=10) as store:
        await store.create(OTHER)
        await store.append(TOPIC, payloads(25))
        await store.roll(TOPIC)
        await store.delete(TOPIC, 2)
        await store.append(TOPIC, payloads(3))
        before: list[LedgerInfo] = list(await store.ledgers(TOPIC))
    async with opened(tmp_path, entries_max=10) as store:
        assert list(await store.topics()) == [TOPIC, OTHER]
        assert list(await store.ledgers(TOPIC)) == before
        assert [one.ledger_id for one in before] == [0, 1, 3]
        assert await store.length_at(TOPIC, 1, 9) == 1000
        assert await everything(store) == payloads(20) + payloads(3)
        assert await store.append(TOPIC, payloads(7)) == Position(3, 9)
        assert await store.append(TOPIC, payloads(1)) == Position(4, 0)
        assert list(await store.ledgers(OTHER)) == []


async def test_a_store_keeps_its_id_and_when_its_ledgers_were_made(tmp_path: Path) -> None:
    """Over restarts, for whoever reads it beside its daemon, and for a file of a release that knew neither."""
    clock = FakeClock(start_ms=5000)
    async with EmbeddedLedgers(tmp_path, clock=clock) as store:
        await store.append(TOPIC, payloads(1))
        store_id = await store.identity()
    async with opened(tmp_path) as store, EmbeddedReader(tmp_path, clock=FakeClock()) as reader:
        assert await store.identity() == await reader.identity() == store_id
        assert [one.created_ms for one in await store.ledgers(TOPIC)] == [5000]
        assert [one.created_ms for one in await reader.ledgers(TOPIC)] == [5000]
    with closing(sqlite3.connect(tmp_path / "ledgers.db")) as old:
        old.executescript("DROP TABLE store; DROP TABLE births;")
    async with EmbeddedReader(tmp_path, clock=FakeClock()) as reader:
        assert await reader.identity() is None
        assert [one.created_ms for one in await reader.ledgers(TOPIC)] == [None]
    async with opened(tmp_path) as store:
        assert await store.identity() is not None
        assert await store.append(TOPIC, payloads(1)) == Position(0, 1)
        assert [one.created_ms for one in await store.ledgers(TOPIC)] == [None]


async def test_ledger_ids_are_never_given_twice(tmp_path: Path) -> None:
    """Not even that of the newest ledger, deleted before a restart."""
    async with opened(tmp_path) as store:
        await store.append(TOPIC, payloads(1))
        await store.roll(TOPIC)
        await store.delete(TOPIC, 0)
    async with opened(tmp_path) as store:
        assert await store.append(TOPIC, payloads(1)) == Position(1, 0)


async def test_the_age_of_a_ledger_starts_anew_after_a_restart(tmp_path: Path) -> None:
    """Clocks of two processes cannot be subtracted; the ledger is still closed by age afterwards."""
    async with opened(tmp_path, age_max_s=60) as store:
        await store.append(TOPIC, payloads(1))
    clock = FakeClock(start_ms=0)
    await clock.advance(500)
    async with EmbeddedLedgers(tmp_path, clock=clock, limits=RollLimits(age_max_s=60)) as store:
        assert await store.append(TOPIC, payloads(1)) == Position(0, 1)
        await clock.advance(60)
        assert await store.append(TOPIC, payloads(1)) == Position(1, 0)


@pytest.mark.parametrize("lines", [1, 30, 200])
async def test_acknowledged_entries_survive_kill_9(tmp_path: Path, lines: int) -> None:
    """A process killed in the middle of appending loses nothing that it was told is safe, and stores no half append."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", appender.__name__, str(tmp_path), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        said = [await process.stdout.readline() for _ in range(lines)]
    finally:
        process.kill()
    said += [line async for line in process.stdout if line.endswith(b"\n")]
    await process.wait()
    acknowledged = {topic.local: (0, "") for topic in appender.TOPICS}
    for line in said:
        name, number, last = line.decode().split()
        acknowledged[name] = (int(number), last)
    async with EmbeddedLedgers(tmp_path, clock=SystemClock(), limits=RollLimits(entries_max=500)) as store:
        for topic in await store.topics():
            found = await everything(store, topic)
            count, position = acknowledged[topic.local]
            assert len(found) >= count
            assert len(found) % appender.APPEND == 0
            assert found == payloads(len(found), 900)
            ledgers = await store.ledgers(topic)
            if count:
                assert max(Position(one.ledger_id, one.entries - 1) for one in ledgers) >= Position.parse(position)
        assert said
        ids = [one.ledger_id for topic in await store.topics() for one in await store.ledgers(topic)]
        after = await store.append(TOPIC, [b"after"])
        assert after.ledger_id > max(ids)


async def test_a_commit_is_shared_by_those_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends that arrive during a commit go into the next one together; one bad caller harms nobody."""
    async with opened(tmp_path) as store:
        commits: list[int] = []
        write: Callable[[Draft], None] = store._database.write

        def counting(draft: Draft) -> None:
            commits.append(len(draft.runs))
            write(draft)

        monkeypatch.setattr(store._database, "write", counting)
        await store.append(OTHER, payloads(1))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(store.append(TOPIC, [b"%d" % number])) for number in range(50)]
            bad = group.create_task(refused(store))
        assert len(commits) <= 4
        assert sum(commits) == 51
        assert [task.result() for task in tasks] == [Position(1, number) for number in range(50)]
        assert "is open" in bad.result()


async def refused(store: EmbeddedLedgers) -> str:
    """Delete an open ledger and return what the store says."""
    with pytest.raises(OffloaderError) as caught:
        await store.delete(OTHER, 0)
    return str(caught.value)


async def test_two_stores_cannot_share_a_directory(tmp_path: Path) -> None:
    """The second one is refused with the directory's name and the holder's process id, and harms nothing."""
    async with opened(tmp_path) as store:
        with pytest.raises(Conflict, match="in use by another process") as caught:
            async with opened(tmp_path):
                pass
        assert str(tmp_path) in str(caught.value)
        assert str(os.getpid()) in str(caught.value)
        await store.append(TOPIC, payloads(1))
    async with opened(tmp_path) as store:
        assert await everything(store) == payloads(1)


async def test_a_full_store_says_so_and_stores_nothing(tmp_path: Path) -> None:
    """An append that finds no room is refused whole with NoSpace; smaller ones go on, also after a restart."""
    async with opened(tmp_path) as store:
        await store.append(TOPIC, payloads(10))
        writer = store._database._writer
        assert writer is not None
        pages = writer.execute("PRAGMA page_count").fetchone()[0]
        writer.execute(f"PRAGMA max_page_count = {pages + 20}")
        with pytest.raises(NoSpace, match="no space left") as caught:
            await store.append(TOPIC, payloads(1000, 1000))
        assert str(tmp_path) in str(caught.value)
        assert await store.append(TOPIC, [b"fits"]) == Position(0, 10)
        assert await everything(store) == [*payloads(10), b"fits"]
    async with opened(tmp_path) as store:
        assert await everything(store) == [*payloads(10), b"fits"]


async def test_a_probe_reports_a_disk_without_room_before_an_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that status says that the ledgers are down, which still can be read."""
    async with opened(tmp_path) as store:
        await store.append(TOPIC, payloads(10))
        await store.probe()
        monkeypatch.setattr("offloaderd.ledgers.embedded.database.free_bytes", lambda _: 5 << 20)
        with pytest.raises(NoSpace, match="5 MiB are free, 64 MiB are needed") as caught:
            await store.probe()
        assert str(tmp_path) in str(caught.value)
        assert await everything(store) == payloads(10)


def log_room(directory: Path) -> int:
    """Return exactly what the log may still grow by: a disk with no byte for the file."""
    return RESERVE_BYTES - (directory / "ledgers.db-wal").stat().st_size + unmoved_bytes(directory)


def unmoved_bytes(directory: Path) -> int:
    """Return what the file will grow by when the log moves into it: what was promised before."""
    with closing(sqlite3.connect(directory / "ledgers.db")) as database:
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        page_bytes = database.execute("PRAGMA page_size").fetchone()[0]
    return max(0, int(pages * page_bytes) - (directory / "ledgers.db").stat().st_size)


async def test_a_deleted_ledger_is_gone_before_its_rows_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader on its way ends at once; the sweep may take its time, and a restart goes on with it."""
    async with opened(tmp_path) as store:
        await store.append(TOPIC, payloads(100))
        await store.roll(TOPIC)
        monkeypatch.setattr(store._database, "sweep", lambda: False)
        reader = store.read(TOPIC, 0, 0, 99, batch_bytes=1000)
        await anext(reader)
        await store.delete(TOPIC, 0)
        with pytest.raises(NotFound, match="ledger 0"):
            await anext(reader)
    async with opened(tmp_path) as store:
        while store._sweeping:
            await asyncio.sleep(0.01)  # noqa: TID251 - a thread is at work
        writer = store._database._writer
        assert writer is not None
        assert writer.execute("SELECT count(*) FROM rows").fetchone() == (0,)


async def test_a_disk_that_is_nearly_full_still_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends stop while there is room for the log; what deleting gives back is used again, on the same full disk."""
    async with opened(tmp_path) as store:
        await store.append(TOPIC, payloads(3000, 1000))
        await store.roll(TOPIC)
    async with opened(tmp_path) as store:
        monkeypatch.setattr("offloaderd.ledgers.embedded.database.free_bytes", lambda _: RESERVE_BYTES + 1_000_000)
        with pytest.raises(NoSpace, match="no space left"):
            await store.append(TOPIC, payloads(1001, 1000))
        await store.delete(TOPIC, 0)
        while store._sweeping:
            await asyncio.sleep(0.01)  # noqa: TID251 - a thread is at work
        assert list(await store.ledgers(TOPIC)) == []
        for start in range(0, 2800, 700):  # most of what was freed, and far more than the disk has beside it
            monkeypatch.setattr("offloaderd.ledgers.embedded.database.free_bytes", lambda _: log_room(tmp_path))
            await store.append(TOPIC, payloads(700, 1000, first_entry_id=start))
        assert await everything(store) == payloads(2800, 1000)


async def test_a_failed_commit_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All who shared it are told, no ledger id is lost, and no watcher is woken."""
    async with opened(tmp_path) as store:

        def full(_draft: Draft) -> None:
            raise NoSpace("no space left")

        watch = store.watch(TOPIC)
        await anext(watch)
        with monkeypatch.context() as patch:
            patch.setattr(store._database, "write", full)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(failing(store.append(TOPIC, payloads(1)))) for _ in range(3)]
        assert [task.result() for task in tasks] == ["no space left"] * 3
        with pytest.raises(NotFound):
            await store.ledgers(TOPIC)
        assert await store.append(TOPIC, payloads(1)) == Position(0, 0)


async def failing(append: object) -> str:
    """Await what is expected to find no space; returns the message."""
    with pytest.raises(NoSpace) as caught:
        await append  # type: ignore[misc]
    return str(caught.value)


async def test_a_directory_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    """A file where the directory should be, or one in its way, is Denied with its name."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    for directory in (blocked, blocked / "below"):
        with pytest.raises(Denied, match="cannot be written") as caught:
            async with opened(directory):
                pass
        assert str(directory) in str(caught.value)


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EROFS, Denied), (errno.EACCES, Denied), (errno.ENOSPC, NoSpace), (errno.EIO, Transient)]
)
async def test_what_the_disk_says_at_the_start_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[OffloaderError]
) -> None:
    """A read-only, forbidden, full or broken disk has an error of its own that names the directory."""

    def fail(*_arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("offloaderd.ledgers.embedded.database.os.open", fail)
    with pytest.raises(kind) as caught:
        async with opened(tmp_path):
            pass
    assert str(tmp_path) in str(caught.value)


async def test_a_database_that_turns_read_only_is_denied(tmp_path: Path) -> None:
    """What SQLite says of a read-only disk becomes Denied; reading goes on."""
    async with opened(tmp_path) as store:
        await store.append(TOPIC, payloads(2))
        writer = store._database._writer
        assert writer is not None
        writer.execute("PRAGMA query_only = ON")
        with pytest.raises(Denied, match="cannot be written"):
            await store.append(TOPIC, payloads(1))
        assert await everything(store) == payloads(2)


@pytest.mark.parametrize("damage", ["garbage", "foreign", "newer"])
async def test_files_that_are_not_a_ledger_store_are_refused(tmp_path: Path, damage: str) -> None:
    """Garbage and another program's database are CorruptData with the path; a newer format is InvalidConfig."""
    path = tmp_path / "ledgers.db"
    if damage == "garbage":
        path.write_bytes(b"this is no database at all" * 1000)
    elif damage == "foreign":
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE notes (text)")
    else:
        async with opened(tmp_path) as store:
            await store.append(TOPIC, payloads(1))
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA user_version = 99")
    with pytest.raises(InvalidConfig if damage == "newer" else CorruptData) as caught:
        async with opened(tmp_path):
            pass
    assert str(tmp_path) in str(caught.value)
    assert caught.value.hint


async def test_a_flipped_byte_in_a_payload_is_never_handed_out(tmp_path: Path) -> None:
    """SQLite does not notice it; the row's check sum does. Other rows stay readable."""
    async with opened(tmp_path) as store:
        await store.append(TOPIC, [b"precious " * 100])
        await store.append(TOPIC, payloads(2))
    path = tmp_path / "ledgers.db"
    data = path.read_bytes()
    assert data.count(b"precious precious") > 0
    path.write_bytes(data.replace(b"precious precious", b"precious preciouz", 1))
    async with opened(tmp_path) as store:
        with pytest.raises(CorruptData, match="CRC-32C") as caught:
            await everything(store)
        assert str(path) in str(caught.value)
        batches = [batch async for batch in store.read(TOPIC, 0, 1, 2, batch_bytes=1000)]
        assert batches[0].payloads == payloads(2)


async def test_a_lost_row_is_corrupt_data_and_not_an_end(tmp_path: Path) -> None:
    """Entries that are on record but not stored are an alarm, whether asked for first or on the way."""
    async with opened(tmp_path) as store:
        for start in (0, 5, 10):
            await store.append(TOPIC, payloads(5, first_entry_id=start))
    with closing(sqlite3.connect(tmp_path / "ledgers.db", isolation_level=None)) as database:
        database.execute("DELETE FROM rows WHERE first_entry_id = 5")
    async with opened(tmp_path) as store:
        for first in (0, 5, 7):
            reader = store.read(TOPIC, 0, first, 14, batch_bytes=1 << 20)
            if first == 0:
                assert (await anext(reader)).payloads == payloads(5)
            with pytest.raises(CorruptData, match="expected entry"):
                await anext(reader)
        with pytest.raises(CorruptData):
            await store.length_at(TOPIC, 0, 7)
        assert await store.length_at(TOPIC, 0, 12) == 1300


async def test_rows_of_deleted_ledgers_go_and_their_space_is_used_again(tmp_path: Path) -> None:
    """The sweep frees what was deleted, goes on after a restart, and the file stops growing."""
    sizes = []
    for turn in range(4):
        async with opened(tmp_path) as store:
            await store.append(TOPIC, payloads(20_000, 1000, first_entry_id=turn))
            await store.roll(TOPIC)
            await store.delete(TOPIC, turn)
            assert list(await store.ledgers(TOPIC)) == []
        sizes.append((tmp_path / "ledgers.db").stat().st_size)
    assert sizes[3] < 2.6 * sizes[0]
    async with opened(tmp_path) as store:
        await store.append(TOPIC, payloads(1))
        while store._sweeping:
            await asyncio.sleep(0.01)  # noqa: TID251 - a thread is at work
        writer = store._database._writer
        assert writer is not None
        assert writer.execute("SELECT count(*) FROM rows").fetchone() == (1,)
        assert writer.execute("SELECT count(*) FROM doomed").fetchone() == (0,)


async def test_the_loop_stays_free_while_a_commit_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads and listings are answered from the last durable state while the disk is slow."""
    async with opened(tmp_path) as store:
        await store.append(TOPIC, payloads(3))
        entered, release = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        write = store._database.write

        def slow(draft: Draft) -> None:
            loop.call_soon_threadsafe(entered.set)
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(timeout=PATIENCE_S)
            write(draft)

        monkeypatch.setattr(store._database, "write", slow)
        async with asyncio.TaskGroup() as group:
            append = group.create_task(store.append(TOPIC, payloads(1)))
            await entered.wait()
            assert await everything(store) == payloads(3)
            assert (await store.confirmed(TOPIC, 0)).last_entry_id == 2
            assert not append.done()
            release.set()
        assert append.result() == Position(0, 3)


async def test_leaving_the_store_finishes_what_is_under_way(tmp_path: Path) -> None:
    """Appends that wait when the store is closed are stored and acknowledged."""
    async with asyncio.TaskGroup() as group, opened(tmp_path) as store:
        tasks = [group.create_task(store.append(TOPIC, [b"%d" % number])) for number in range(20)]
        await asyncio.sleep(0)  # noqa: TID251 - lets them start
    assert [task.result().entry_id for task in tasks] == list(range(20))
    async with opened(tmp_path) as store:
        assert await everything(store) == [b"%d" % number for number in range(20)]
