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

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from offloaderd.clock import SystemClock
from offloaderd.errors import Conflict, CorruptData, InvalidConfig, OffloaderError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

VERSION = 1
OURS = "_offloaderd"
DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What a target holds. `source` says of what; `files` are those of the last round, by the folder of their day."""

    number: int
    source: dict[str, str]
    positions: dict[str, str]
    files: list[str] = field(default_factory=list)
    staging: str = ""
    rows: int = 0

    def encode(self) -> str:
        """Return the record."""
        return json.dumps({"version": VERSION, **{name: getattr(self, name) for name in self.__slots__}}, indent=1)


def decode(text: str, path: str) -> Commit:
    """Read a record. Raises CorruptData."""
    try:
        found = json.loads(text)
        if found.pop("version") != VERSION:
            raise CorruptData(key=path, offset=0, expected=f"version {VERSION}", found="another")
        return Commit(**found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptData(key=path, offset=0, expected="the record of a commit", found=error) from None


class ExportFolder:
    """A target, by its path or URL."""

    def __init__(self, spark: SparkSession, target: str) -> None:
        context: Any = spark.sparkContext  # Spark has no other way to its file systems than the Java inside of it
        self._jvm: Any = context._jvm  # noqa: SLF001
        self._gateway: Any = context._gateway  # noqa: SLF001
        self._path: Any = self._jvm.org.apache.hadoop.fs.Path
        self._root: Any = self._path(target)
        try:
            hadoop: Any = context._jsc.hadoopConfiguration()  # noqa: SLF001
            self._files: Any = self._root.getFileSystem(hadoop)
            self._root = self._files.makeQualified(self._root)
            self._context: Any = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._root.toUri(), hadoop)
        except Py4JJavaError as error:
            raise InvalidConfig(
                f"cannot export to {target}: {_said(error)}",
                hint="name a folder that Spark can write to; schemes such as s3a:// need their jars (--packages)",
            ) from error
        self.target = str(self._root.toString())

    def last(self, source: dict[str, str]) -> Commit:
        """Return the last commit, number 0 for none.

        Raises InvalidConfig for a folder that holds something else, CorruptData, and OffloaderError when it cannot be
        read.
        """
        names = sorted(self._below(f"{OURS}/commits"))
        if not names:
            strangers = [name for name in self._below("") if name != OURS]
            if strangers:
                raise InvalidConfig(
                    f"{self.target} holds {strangers[0]}, and is no export", hint="name an empty folder"
                )
            return Commit(number=0, source=source, positions={})
        path = f"{OURS}/commits/{names[-1]}"
        last = decode(self._read(path), f"{self.target}/{path}")
        if last.source != source:
            told = ", ".join(f"{name} {value}" for name, value in last.source.items())
            raise InvalidConfig(f"{self.target} is an export of something else: {told}", hint="name another folder")
        return last

    def recover(self, source: dict[str, str]) -> Commit:
        """Return the last commit, with all its files in their places and nothing of it in staging. Raises as `last`."""
        last = self.last(source)
        self._move_all(last)
        self._clear(last)
        return last

    def staging(self, last: Commit) -> str:
        """Return a new folder for the round after a commit."""
        return f"{OURS}/staging/{last.number + 1:0{DIGITS}}-{SystemClock().uuid()}"

    def url(self, path: str) -> str:
        """Return where a path is, for Spark."""
        return f"{self.target}/{path}"

    def commit(self, last: Commit, staging: str, positions: dict[str, str], rows: int) -> Commit:
        """Make what is in staging part of the target, with the positions up to which it goes.

        Raises Conflict when another export has committed since.
        """
        files = [
            f"{day}/{name}"
            for day in sorted(self._below(staging))
            if day.startswith("day=")
            for name in sorted(self._below(f"{staging}/{day}"))
            if name.endswith(".parquet")
        ]
        made = Commit(
            number=last.number + 1, source=last.source, positions=positions, files=files, staging=staging, rows=rows
        )
        draft = f"{staging}/commit.json"
        self._write(draft, made.encode())
        self._call("mkdir", lambda: self._files.mkdirs(self._at(f"{OURS}/commits")))
        self._rename_new(draft, f"{OURS}/commits/{made.number:0{DIGITS}}.json")
        self._move_all(made)
        self._clear(made)
        return made

    def _clear(self, made: Commit) -> None:
        """Delete the staging of all rounds up to a commit; that of the next one may be somebody's who is at work."""
        for name in self._below(f"{OURS}/staging"):
            if name[:DIGITS] <= f"{made.number:0{DIGITS}}":
                self._call("delete", lambda name=name: self._files.delete(self._at(f"{OURS}/staging/{name}"), True))

    def _move_all(self, made: Commit) -> None:
        """Move the files of a commit to their places, as far as they are not there."""
        for name in made.files:
            day, _, file = name.partition("/")
            there = f"{day}/{made.number:0{DIGITS}}-{file}"
            if self._call("look", lambda there=there: self._files.exists(self._at(there))):
                continue
            self._call("mkdir", lambda day=day: self._files.mkdirs(self._at(day)))
            here = f"{made.staging}/{name}"
            if not self._call("move", lambda h=here, t=there: self._files.rename(self._at(h), self._at(t))):
                raise OffloaderError(
                    f"{self.target}/{here}, which is committed, cannot be moved to {there}",
                    hint="if somebody deleted it, export into an empty folder",
                )

    def _rename_new(self, here: str, there: str) -> None:
        kind = self._jvm.org.apache.hadoop.fs.Options.Rename
        none = self._gateway.new_array(kind, 1)
        none[0] = getattr(kind, "NONE")  # noqa: B009 - a field of an enum in Java
        try:
            self._context.rename(self._at(here), self._at(there), none)
        except Py4JJavaError as error:
            if "FileAlreadyExists" in error.java_exception.getClass().getName():
                raise Conflict(
                    f"another export has committed to {self.target} meanwhile",
                    hint="nothing of this round was added; run one export of a target at a time",
                ) from error
            raise OffloaderError(f"{self.target}: cannot commit: {_said(error)}") from error

    def _at(self, path: str) -> Any:  # noqa: ANN401 - Java's path
        return self._path(self._root, path) if path else self._root

    def _below(self, path: str) -> Iterator[str]:
        """Yield the names in a folder; none for one that is not there."""
        at = self._at(path)
        if self._call("look", lambda: self._files.exists(at)):
            for one in self._call("list", lambda: self._files.listStatus(at)):
                yield str(one.getPath().getName())

    def _read(self, path: str) -> str:
        def read() -> bytes:
            stream = self._files.open(self._at(path))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

        return str(self._call("read", read), "utf-8")

    def _write(self, path: str, text: str) -> None:
        def write() -> None:
            stream = self._files.create(self._at(path), False)
            try:
                stream.write(bytearray(text.encode()))
                stream.hsync()
            finally:
                stream.close()

        self._call("write", write)

    def _call(self, what: str, call: Any) -> Any:  # noqa: ANN401 - whatever Java gives
        try:
            return call()
        except Py4JJavaError as error:
            raise OffloaderError(f"{self.target}: cannot {what}: {_said(error)}") from error


def _said(error: Py4JJavaError) -> str:
    return str(error.java_exception.getMessage() or error.java_exception.getClass().getName())
