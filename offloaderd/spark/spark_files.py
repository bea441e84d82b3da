"""Folders and files as Spark sees them, below one path or URL: whatever file system it has the jars for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from offloaderd.errors import InvalidConfig, OffloaderError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession


class SparkFiles:
    """What lies below a root. Paths are relative to it, with slashes. All methods raise OffloaderError."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        """Find the file system. Raises InvalidConfig for one that Spark has not."""
        context: Any = spark.sparkContext  # Spark has no other way to its file systems than the Java inside of it
        self._jvm: Any = context._jvm  # noqa: SLF001
        self._gateway: Any = context._gateway  # noqa: SLF001
        self._path: Any = self._jvm.org.apache.hadoop.fs.Path
        self._root: Any = self._path(root)
        try:
            hadoop: Any = context._jsc.hadoopConfiguration()  # noqa: SLF001
            self._files: Any = self._root.getFileSystem(hadoop)
            self._root = self._files.makeQualified(self._root)
            self._context: Any = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._root.toUri(), hadoop)
        except Py4JJavaError as error:
            raise InvalidConfig(
                f"cannot export to {root}: {_said(error)}",
                hint="name a folder that Spark can write to; schemes such as s3a:// need their jars (--packages)",
            ) from error
        self.root = str(self._root.toString())

    def url(self, path: str) -> str:
        """Return where a path is, for Spark."""
        return f"{self.root}/{path}"

    def names(self, path: str) -> Iterator[str]:
        """Yield the names in a folder; none for one that is not there."""
        at = self._at(path)
        if self.exists(path):
            for one in self._call("list", lambda: self._files.listStatus(at)):
                yield str(one.getPath().getName())

    def parquet_by_day(self, path: str) -> list[str]:
        """Return what Spark has written there by day: DAY/NAME of each file, in order."""
        return [
            f"{day}/{name}"
            for day in sorted(self.names(path))
            if day.startswith("day=")
            for name in sorted(self.names(f"{path}/{day}"))
            if name.endswith(".parquet")
        ]

    def exists(self, path: str) -> bool:
        """Say whether something is there."""
        return bool(self._call("look", lambda: self._files.exists(self._at(path))))

    def make(self, path: str) -> None:
        """Make a folder and those above it, as far as they are not there."""
        self._call("mkdir", lambda: self._files.mkdirs(self._at(path)))

    def delete(self, path: str) -> None:
        """Delete a folder with all that is in it."""
        self._call("delete", lambda: self._files.delete(self._at(path), True))

    def move(self, here: str, there: str) -> bool:
        """Move a file; returns whether it was there to be moved."""
        return bool(self._call("move", lambda: self._files.rename(self._at(here), self._at(there))))

    def rename_new(self, here: str, there: str) -> bool:
        """Move a file to where none is yet, in one step; returns whether that was so."""
        kind = self._jvm.org.apache.hadoop.fs.Options.Rename
        none = self._gateway.new_array(kind, 1)
        none[0] = getattr(kind, "NONE")  # noqa: B009 - a field of an enum in Java
        try:
            self._context.rename(self._at(here), self._at(there), none)
        except Py4JJavaError as error:
            if "FileAlreadyExists" in error.java_exception.getClass().getName():
                return False
            raise OffloaderError(f"{self.root}: cannot commit: {_said(error)}") from error
        return True

    def read(self, path: str) -> str:
        """Return a text."""

        def read() -> bytes:
            stream = self._files.open(self._at(path))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

        return str(self._call("read", read), "utf-8")

    def write(self, path: str, text: str) -> None:
        """Write a text to a new file."""

        def write() -> None:
            stream = self._files.create(self._at(path), False)
            try:
                stream.write(bytearray(text.encode()))
                stream.hsync()
            finally:
                stream.close()

        self._call("write", write)

    def _at(self, path: str) -> Any:  # noqa: ANN401 - Java's path
        return self._path(self._root, path) if path else self._root

    def _call(self, what: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever Java gives
        try:
            return call()
        except Py4JJavaError as error:
            raise OffloaderError(f"{self.root}: cannot {what}: {_said(error)}") from error


def _said(error: Py4JJavaError) -> str:
    return str(error.java_exception.getMessage() or error.java_exception.getClass().getName())
