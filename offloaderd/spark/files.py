"""Folders and files below one path or URL, on any file system that Spark has the jars for."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from offloaderd.core.errors import InvalidConfig, OffloaderError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LOCAL = "file"
RENAMES_NEW = "hdfs"
"""Its name nodes promise a rename that replaces nothing, in one step."""

NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


class SparkFiles:
    """Files below a root. Paths are relative to it, with slashes. All methods raise OffloaderError."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        """Find the file system. Raises InvalidConfig for one that Spark does not have."""
        context: Any = spark.sparkContext  # Spark reaches its file systems only by the Java inside of it
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
                f"cannot export to {root}: {_message(error)}",
                hint="name a folder that Spark can write to; schemes such as s3a:// need their jars (--packages)",
            ) from error
        self.root = str(self._root.toString())
        self.scheme = str(self._root.toUri().getScheme())
        self._local = Path(str(self._root.toUri().getPath())) if self.scheme == LOCAL else None

    def url(self, path: str) -> str:
        """Return the URL of a path, for Spark."""
        return f"{self.root}/{path}"

    def names(self, path: str) -> Iterator[str]:
        """Yield the names in a folder; none for one that does not exist."""
        at = self._at(path)
        if self._call("look", lambda: self._files.exists(at)):
            for one in self._call("list", lambda: self._files.listStatus(at)):
                yield str(one.getPath().getName())

    def parquet(self, path: str) -> list[str]:
        """Return NAME of each file that Spark has written, or PARTITION/NAME for one in a partition, in order."""
        names = sorted(self.names(path))
        return [name for name in names if name.endswith(".parquet")] + [
            f"{partition}/{name}"
            for partition in names
            if "=" in partition
            for name in sorted(self.names(f"{path}/{partition}"))
            if name.endswith(".parquet")
        ]

    def keep(self, path: str, files: Iterable[str]) -> None:
        """Delete all files that `parquet` returns but these."""
        for name in set(self.parquet(path)).difference(files):
            self.delete(f"{path}/{name}")

    def make(self, path: str) -> None:
        """Make a folder and those above it, unless they exist."""
        self._call("mkdir", lambda: self._files.mkdirs(self._at(path)))

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its content; files that others write meanwhile may stay."""
        with suppress(Py4JJavaError):
            self._files.delete(self._at(path), True)

    def put_new(self, here: str, there: str) -> bool:
        """Give a file a new name in one step; return whether the name was free.

        Raises InvalidConfig where the file system has no such step.
        """
        if self._local is not None:
            return link_new(self._local / here, self._local / there)
        return self._renamed(here, there, taken="FileAlreadyExists")

    def move(self, here: str, there: str) -> bool:
        """Move a folder to a new name in one step; return whether the folder existed."""
        if self._local is not None:
            return move_new(self._local / here, self._local / there)
        return self._renamed(here, there, taken="FileNotFound")

    def _renamed(self, here: str, there: str, *, taken: str) -> bool:
        """Rename by Hadoop, which replaces nothing; return False when it raises `taken`."""
        kind = self._jvm.org.apache.hadoop.fs.Options.Rename
        none = self._gateway.new_array(kind, 1)
        none[0] = getattr(kind, "NONE")  # noqa: B009 - a field of an enum in Java
        try:
            self._context.rename(self._at(here), self._at(there), none)
        except Py4JJavaError as error:
            if taken in error.java_exception.getClass().getName():
                return False
            raise OffloaderError(f"{self.root}: cannot rename {here} to {there}: {_message(error)}") from error
        return True

    def read(self, path: str) -> str:
        """Return a text."""

        def read() -> bytes:
            with closing(self._files.open(self._at(path))) as stream:
                return bytes(stream.readAllBytes())

        return str(self._call("read", read), "utf-8")

    def write(self, path: str, text: str) -> None:
        """Write a text to a new file."""

        def write() -> None:
            with closing(self._files.create(self._at(path), False)) as stream:
                stream.write(bytearray(text.encode()))
                stream.hsync()

        self._call("write", write)

    def _at(self, path: str) -> Any:  # noqa: ANN401 - Java's path
        return self._path(self._root, path) if path else self._root

    def _call(self, what: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - any result of Java
        try:
            return call()
        except Py4JJavaError as error:
            raise OffloaderError(f"{self.root}: cannot {what}: {_message(error)}") from error


def local_folder(url: str) -> Path | None:
    """Return the folder of this machine that a URL of SparkFiles names; None for one on another file system."""
    scheme, _, path = url.partition(":")
    return Path(path) if scheme == LOCAL else None


def check_scheme(scheme: str, target: str) -> None:
    """Raise InvalidConfig for a file system on which two exports could both succeed in the same commit."""
    if scheme not in {LOCAL, RENAMES_NEW}:
        raise InvalidConfig(
            f"cannot export Parquet files to {target}: on {scheme}:// two exports could commit the same round",
            hint="export a table there (--format iceberg --catalog NAME), or use a stream with a sink of Spark's; "
            "Parquet files go to folders of this machine, to mounts that have hard links, and to hdfs://",
        )


def link_new(here: Path, there: Path) -> bool:
    """Give a file a second name; return whether the name was free. Of many calls for one name a single one succeeds.

    Raises InvalidConfig where there are no hard links, OffloaderError.
    """
    try:
        os.link(here, there)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in NO_LINKS:
            raise InvalidConfig(
                f"cannot export Parquet files to {there.parent}: its file system has no hard links ({error.strerror})",
                hint="name a folder of a file system that has them, or export a table (--format iceberg)",
            ) from error
        raise OffloaderError(f"{there}: cannot commit: {error.strerror}") from error
    return True


def move_new(here: Path, there: Path) -> bool:
    """Move a folder to a new name; return whether the folder existed. Raises OffloaderError."""
    try:
        here.rename(there)  # replaces no folder that is not empty
    except FileNotFoundError:
        return False
    except OSError as error:
        raise OffloaderError(f"{here}: cannot be moved to {there}: {error.strerror}") from error
    return True


def _message(error: Py4JJavaError) -> str:
    return str(error.java_exception.getMessage() or error.java_exception.getClass().getName())
