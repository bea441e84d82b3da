"""The SQLite file of the embedded ledger store: its tables, opening and locking it, writing drafts, reading rows.

All of it blocks, so none of it runs on the event loop. One thread writes; several may read, each call on a connection
of its own. The directory holds `ledgers.db` (with SQLite's -wal and -shm files) and `LOCK`, which is locked as long as
the store is open: SQLite itself would admit a second process.

The database is in WAL mode with synchronous=FULL: a commit returns after its fsync. Application id and user version
name the format; a newer version is refused, an older one would be migrated here.

| table    | one row for each        | columns                                                        |
|----------|-------------------------|----------------------------------------------------------------|
| topics   | topic                   | topic_id, name (persistent://...)                              |
| ledgers  | ledger                  | ledger_id, topic_id, entries, size_bytes, closed, closed_at_ms |
| rows     | run of entries          | see rows.py                                                    |
| doomed   | deleted ledger with rows| ledger_id                                                      |
| sequence | store                   | next_ledger_id: no id is ever given twice                      |
| store    | store                   | store_id: a UUID, made once                                    |
| births   | ledger                  | ledger_id, created_ms                                          |

Older releases made no `store` and no `births`: a file gets them when it is opened to be written.
"""

import errno
import fcntl
import os
import queue
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from offloaderd.core.errors import (
    Closed,
    Conflict,
    CorruptData,
    Denied,
    InvalidConfig,
    NoSpace,
    NotFound,
    OffloaderError,
    Transient,
)
from offloaderd.core.model import TopicName
from offloaderd.ledgers.book import Book, Draft, Ledger
from offloaderd.ledgers.embedded import rows

APPLICATION_ID: Final = int.from_bytes(b"OFLD")
FORMAT_VERSION: Final = 1

SCHEMA: Final = """
BEGIN IMMEDIATE;
CREATE TABLE topics (topic_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE ledgers (
  ledger_id INTEGER PRIMARY KEY,
  topic_id INTEGER NOT NULL REFERENCES topics,
  entries INTEGER NOT NULL,
  size_bytes INTEGER NOT NULL,
  closed INTEGER NOT NULL,
  closed_at_ms INTEGER NOT NULL
);
CREATE TABLE rows (
  ledger_id INTEGER NOT NULL,
  first_entry_id INTEGER NOT NULL,
  entry_count INTEGER NOT NULL,
  bytes_before INTEGER NOT NULL,
  lengths BLOB NOT NULL,
  lengths_crc32c INTEGER NOT NULL,
  payloads BLOB NOT NULL,
  payloads_crc32c INTEGER NOT NULL
);
CREATE UNIQUE INDEX rows_by_entry ON rows (ledger_id, first_entry_id);
CREATE TABLE doomed (ledger_id INTEGER PRIMARY KEY);
CREATE TABLE sequence (one INTEGER PRIMARY KEY CHECK (one = 1), next_ledger_id INTEGER NOT NULL);
INSERT INTO sequence VALUES (1, 0);
"""
LATER: Final = """
CREATE TABLE IF NOT EXISTS store (one INTEGER PRIMARY KEY CHECK (one = 1), store_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS births (ledger_id INTEGER PRIMARY KEY, created_ms INTEGER NOT NULL);
"""
"""Tables that older releases of the same format do not know, and leave alone."""
STAMP: Final = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT_VERSION}; COMMIT;"

READERS = 2
PAGE_BYTES = 8192
CHECKPOINT_BYTES = 32 * 1024 * 1024
"""Size of the write-ahead log at which its pages move into the database file."""
RESERVE_BYTES = 2 * CHECKPOINT_BYTES
"""Disk space that appends leave for the log: deleting on a full disk needs it."""
SWEEP_ROWS = 8
"""Rows of a deleted ledger in one transaction (about 8 MiB): appends do not wait long."""
BUSY_TIMEOUT_S = 5.0

_ALL = (
    "SELECT topic_id, name FROM topics ORDER BY topic_id",
    "SELECT topic_id, ledger_id, entries, size_bytes, closed, closed_at_ms FROM ledgers ORDER BY ledger_id",
    "SELECT ledger_id, created_ms FROM births",
)
_ONE = (
    "SELECT topic_id, name FROM topics WHERE name = :topic",
    "SELECT topic_id, ledger_id, entries, size_bytes, closed, closed_at_ms FROM ledgers JOIN topics USING (topic_id) "
    "WHERE ledger_id = :ledger AND name = :topic",
    "SELECT ledger_id, created_ms FROM births WHERE ledger_id = :ledger",
)
"""Topics, ledgers and their births: all, or one topic and one of its ledgers."""

_HEAD_COLUMNS = "ledger_id, first_entry_id, entry_count, bytes_before, lengths, lengths_crc32c"
_FLOOR = "(SELECT max(first_entry_id) FROM rows WHERE ledger_id = :ledger AND first_entry_id <= :entry)"
_HEAD_AT = f"SELECT {_HEAD_COLUMNS} FROM rows WHERE ledger_id = :ledger AND first_entry_id = {_FLOOR}"  # noqa: S608 - ours
_ROWS_FROM = (
    f"SELECT {_HEAD_COLUMNS}, payloads, payloads_crc32c FROM rows "  # noqa: S608 - all parts are constants of ours
    f"WHERE ledger_id = :ledger AND first_entry_id >= {_FLOOR} ORDER BY first_entry_id"
)
_SWEEP = "DELETE FROM rows WHERE rowid IN (SELECT rowid FROM rows WHERE ledger_id = ? ORDER BY first_entry_id LIMIT ?)"


class Database:
    """The open file. `open` first, `close` last; `write`, `sweep` and `close` from one thread only."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "ledgers.db"
        self._lock: int | None = None
        self._writer: sqlite3.Connection | None = None
        self._readers: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._reader_count = 0
        self._topic_ids: dict[TopicName, int] = {}

    def open(self, store_id: str, opened_s: float) -> tuple[Book, str | None]:
        """Open or create the store and return its content and id; one without an id gets `store_id`.

        Raises Conflict when another process has it open, Denied, NoSpace, CorruptData, InvalidConfig.
        """
        try:
            with self._translated():
                self._lock = lock_directory(self.directory)
                self._writer = self._connect()
                self._check_format(self._writer)
                self._writer.executescript(LATER)
                self._writer.execute("INSERT OR IGNORE INTO store VALUES (1, ?)", (store_id,))
                stored = self._load(self._writer, opened_s)
                self._add_readers()
                return stored
        except BaseException:
            self.close()
            raise

    def open_for_reading(self) -> None:
        """Open a store for reading, beside another process. Raises NotFound, Denied, CorruptData."""
        if not self.path.is_file():
            raise NotFound(
                f"no ledger store in {self.directory}", hint="correct ledgers.directory; it has to be on this machine"
            )
        try:
            with self._translated():
                self._add_readers()
                with self._reading() as reader:
                    self._check_format(reader)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close everything after the reads under way; a second call has no effect."""
        while self._reader_count:
            self._readers.get().close()
            self._reader_count -= 1
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def write(self, draft: Draft) -> None:
        """Make a draft durable, all of it or nothing. Raises NoSpace, Denied, Transient, CorruptData."""
        new_ids: dict[TopicName, int] = {}
        with self._transaction() as writer:
            self._check_room(writer, draft)
            for topic, changes in draft.changes.items():
                topic_id = self._topic_ids.get(topic)
                if topic_id is None:
                    cursor = writer.execute("INSERT INTO topics (name) VALUES (?)", (str(topic),))
                    topic_id = new_ids[topic] = int(cursor.lastrowid or 0)
                deleted = [(ledger_id,) for ledger_id, ledger in changes.items() if ledger is None]
                changed = [ledger for ledger in changes.values() if ledger is not None]
                writer.executemany(
                    "INSERT OR REPLACE INTO ledgers VALUES (?, ?, ?, ?, ?, ?)",
                    [
                        (one.ledger_id, topic_id, one.entries, one.size_bytes, one.closed, one.closed_at_ms)
                        for one in changed
                    ],
                )
                writer.executemany(
                    "INSERT OR IGNORE INTO births VALUES (?, ?)",
                    [(one.ledger_id, one.created_ms) for one in changed if one.created_ms is not None],
                )
                writer.executemany("DELETE FROM births WHERE ledger_id = ?", deleted)
                writer.executemany("DELETE FROM ledgers WHERE ledger_id = ?", deleted)
                writer.executemany("INSERT OR IGNORE INTO doomed VALUES (?)", deleted)
            writer.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows.rows(draft.runs))
            if draft.next_ledger_id != draft.book.next_ledger_id:
                writer.execute("UPDATE sequence SET next_ledger_id = ?", (draft.next_ledger_id,))
        self._topic_ids.update(new_ids)

    def sweep(self) -> bool:
        """Drop some rows of deleted ledgers; returns whether there are more. Raises as `write` does."""
        with self._transaction() as writer:
            first = writer.execute("SELECT ledger_id FROM doomed ORDER BY ledger_id LIMIT 1").fetchone()
            if first is None:
                return False
            if writer.execute(_SWEEP, (*first, SWEEP_ROWS)).rowcount < SWEEP_ROWS:
                writer.execute("DELETE FROM doomed WHERE ledger_id = ?", first)
        return True

    def fetch(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        """Return entries from `first` on, to at most `last`: one, then more while they fit into `bytes_max`.

        Returns an empty list when the first is not stored. Raises CorruptData, Transient.
        """
        found: list[bytes] = []
        at, left = first, bytes_max
        with self._reading() as reader, closing(reader.cursor()) as cursor:
            for row in cursor.execute(_ROWS_FROM, {"ledger": ledger_id, "entry": first}):
                head = rows.head(row[:6], key=str(self.path))
                if not head.first_entry_id <= at <= head.last_entry_id:
                    break
                if found and head.lengths[at - head.first_entry_id] > left:
                    break
                taken = rows.slice_payloads(
                    head, row[6], row[7], first=at, last=last, bytes_max=left, key=str(self.path)
                )
                found += taken
                at += len(taken)
                left -= sum(map(len, taken))
                if at > last or at <= head.last_entry_id or left <= 0:
                    break
        return found

    def length_at(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the ledger's payload bytes up to and including an entry, None when it is not stored."""
        with self._reading() as reader:
            row = reader.execute(_HEAD_AT, {"ledger": ledger_id, "entry": entry_id}).fetchone()
        if row is None:
            return None
        head = rows.head(row, key=str(self.path))
        return head.length_at(entry_id) if entry_id <= head.last_entry_id else None

    def load(self, only: tuple[TopicName, int] | None = None) -> tuple[Book, str | None]:
        """Return the present content, or of it `only` a topic and its ledger, and the store's id.

        The id is None in a file that only older releases wrote. Raises CorruptData, Transient.
        """
        with self._reading() as reader:
            reader.execute("BEGIN")  # both tables as they were at one moment
            try:
                return self._load(reader, only=only)
            finally:
                reader.execute("COMMIT")

    def _add_readers(self) -> None:
        for _ in range(READERS):
            reader = self._connect()
            self._readers.put(reader)
            self._reader_count += 1
            reader.execute("PRAGMA query_only = ON")

    def _check_room(self, writer: sqlite3.Connection, draft: Draft) -> None:
        """Raise NoSpace for entries that do not fit on the disk; deletions need no check.

        Entries go to the log first and from there to the file. The log may grow to the reserve; the file reuses the
        pages of deleted ledgers before it grows, and grows later by what is only in the log yet.
        """
        if not draft.runs:
            return
        needed = sum(sum(map(len, run.payloads)) for run in draft.runs)
        page_count, unused = (
            writer.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count")
        )
        log_bytes = file_bytes(self.directory / "ledgers.db-wal")
        log_growth = max(0, max(RESERVE_BYTES, CHECKPOINT_BYTES + needed) - log_bytes)
        file_growth = max(0, page_count * PAGE_BYTES - file_bytes(self.path)) + max(0, needed - unused * PAGE_BYTES)
        self._need(log_growth + file_growth)

    def check_room(self) -> None:
        """Raise NoSpace when not even a small entry fits; any thread may call it."""
        with self._translated():
            self._need(max(0, RESERVE_BYTES - file_bytes(self.directory / "ledgers.db-wal")))

    def _need(self, needed: int) -> None:
        free = free_bytes(self.directory)
        if free < needed:
            raise NoSpace(
                f"no space left for the ledger store in {self.directory}: {free // 1024**2} MiB are free, "
                f"{needed // 1024**2 + 1} MiB are needed",
                hint="free some, or delete ledgers",
            )

    def _connect(self) -> sqlite3.Connection:
        # One thread makes connections, others use them, one at a time.
        connection = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # for a new file only
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_BYTES // PAGE_BYTES}")
            connection.execute(f"PRAGMA journal_size_limit = {RESERVE_BYTES}")
        except BaseException:
            connection.close()
            raise
        if mode != "wal":
            connection.close()
            raise InvalidConfig(
                f"the ledger store in {self.directory} cannot keep a write-ahead log there",
                hint="use a directory on a local disk",
            )
        return connection

    def _check_format(self, writer: sqlite3.Connection) -> None:
        application_id, version, tables = (
            writer.execute(query).fetchone()[0]
            for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
        if (application_id, version, tables) == (0, 0, 0):
            writer.executescript(SCHEMA + STAMP)
        elif application_id != APPLICATION_ID:
            raise CorruptData(
                key=str(self.path),
                offset=68,  # of the application id in SQLite's header
                expected=f"application id {APPLICATION_ID:#010x} of a ledger store",
                found=f"{application_id:#010x}",
                hint="this is the database of another program: choose another directory",
            )
        elif version != FORMAT_VERSION:
            raise InvalidConfig(
                f"the ledger store in {self.directory} has format {version}, this release reads {FORMAT_VERSION}",
                hint="run the release that wrote it, or a newer one",
            )

    def _load(
        self, writer: sqlite3.Connection, opened_s: float = 0.0, *, only: tuple[TopicName, int] | None = None
    ) -> tuple[Book, str | None]:
        topics, ledger_rows, births_of = _ALL if only is None else _ONE
        wanted = {} if only is None else {"topic": str(only[0]), "ledger": only[1]}
        names = {topic_id: TopicName.parse(name) for topic_id, name in writer.execute(topics, wanted)}
        self._topic_ids = {topic: topic_id for topic_id, topic in names.items()}
        ledgers: dict[int, list[Ledger]] = {topic_id: [] for topic_id in names}
        query = "SELECT count(*) FROM sqlite_master WHERE name IN ('store', 'births')"
        later = writer.execute(query).fetchone()[0] == 2
        births = dict(writer.execute(births_of, wanted)) if later else {}
        for topic_id, ledger_id, entries, size_bytes, closed, closed_at_ms in writer.execute(ledger_rows, wanted):
            ledgers[topic_id].append(
                Ledger(
                    ledger_id=ledger_id,
                    opened_s=opened_s,
                    closed=bool(closed),
                    entries=entries,
                    size_bytes=size_bytes,
                    closed_at_ms=closed_at_ms,
                    created_ms=births.get(ledger_id),
                )
            )
        book = Book()
        for topic_id, found in ledgers.items():
            book.restore(names[topic_id], found)
        book.next_ledger_id = writer.execute("SELECT next_ledger_id FROM sequence").fetchone()[0]
        row = writer.execute("SELECT store_id FROM store").fetchone() if later else None
        return book, row[0] if row is not None else None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        writer = self._writer
        if writer is None:
            raise Closed(f"the ledger store in {self.directory} is not open")
        with self._translated():
            writer.execute("BEGIN IMMEDIATE")
            try:
                yield writer
                writer.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # after some errors SQLite has rolled back by itself
                    writer.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        reader = self._readers.get()
        try:
            with self._translated():
                yield reader
        finally:
            self._readers.put(reader)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn errors of SQLite and of the system into ours, naming the directory."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._translate(error) from error

    def _translate(self, error: sqlite3.Error | OSError) -> OffloaderError:
        if isinstance(error, OSError):
            full, denied, reason = error.errno in _FULL, error.errno in _DENIED, error.strerror or str(error)
        else:
            primary, reason = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF, str(error)
            if primary in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
                return CorruptData(
                    key=str(self.path),
                    offset=0,
                    expected="a ledger store",
                    found=reason,
                    hint="restore the directory from a backup, or move it away and start with an empty one",
                )
            full = primary == sqlite3.SQLITE_FULL or (primary == sqlite3.SQLITE_IOERR and full_disk(self.directory))
            denied = primary in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}
        if full:
            message = f"no space left for the ledger store in {self.directory}: {reason}"
            return NoSpace(message, hint="free some, or delete ledgers")
        if denied:
            return Denied(
                f"the ledger store in {self.directory} cannot be written: {reason}",
                hint="check that the disk is not mounted read-only and who owns the directory",
            )
        return Transient(f"the ledger store in {self.directory} failed: {reason}")


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG}
_FREE_BYTES_MIN = 1024 * 1024


def free_bytes(directory: Path) -> int:
    """Return the bytes that may still be written to the directory's disk. Raises OSError."""
    stat = os.statvfs(directory)
    return stat.f_bavail * stat.f_frsize


def file_bytes(path: Path) -> int:
    """Return the size of a file, 0 for a missing one. Raises OSError."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def full_disk(directory: Path) -> bool:
    """Whether the disk is nearly full, which SQLite may report as an I/O error."""
    try:
        return free_bytes(directory) < _FREE_BYTES_MIN
    except OSError:
        return False


def lock_directory(directory: Path) -> int:
    """Create and lock a directory for this process; return the descriptor. Raises Conflict when locked, OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
        os.close(lock)
        raise Conflict(
            f"the ledger store in {directory} is in use by another process (pid {holder or 'unknown'})",
            hint="stop that one, or choose another directory",
        ) from None
    except BaseException:
        os.close(lock)
        raise
    return lock
