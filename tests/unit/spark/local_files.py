"""Folders as exports see them, without Java: the twin of SparkFiles for a folder of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from offloaderd.spark.files import link_new, move_new

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession


class LocalFiles:
    """A folder by its URL."""

    scheme = "file"

    def __init__(self, _: SparkSession | None, root: str) -> None:
        self.root = root.replace("file:///", "file:/", 1)  # as Hadoop spells it
        self._folder = Path(root.removeprefix("file:"))

    def url(self, path: str) -> str:
        """Return where a path is."""
        return f"{self.root}/{path}"

    def names(self, path: str) -> list[str]:
        """Return the names in a folder; none for one that is not there."""
        folder = self._folder / path
        return [one.name for one in folder.iterdir()] if folder.is_dir() else []

    def parquet(self, path: str) -> list[str]:
        """Return the files below a folder."""
        return sorted(str(one.relative_to(self._folder / path)) for one in (self._folder / path).rglob("*.parquet"))

    def keep(self, path: str, files: Iterable[str]) -> None:
        """Delete all files below a folder but these."""
        for name in set(self.parquet(path)).difference(files):
            self.delete(f"{path}/{name}")

    def delete(self, path: str) -> None:
        """Delete a file or a folder."""
        if (self._folder / path).is_dir():
            shutil.rmtree(self._folder / path, ignore_errors=True)
        else:
            (self._folder / path).unlink(missing_ok=True)

    def make(self, path: str) -> None:
        """Make a folder."""
        (self._folder / path).mkdir(parents=True, exist_ok=True)

    def write(self, path: str, text: str) -> None:
        """Write a new file, and the folders above it."""
        self.make(str(Path(path).parent))
        with (self._folder / path).open("x") as file:
            file.write(text)

    def read(self, path: str) -> str:
        """Return a text."""
        return (self._folder / path).read_text()

    def put_new(self, here: str, there: str) -> bool:
        """As SparkFiles does for such a folder."""
        return link_new(self._folder / here, self._folder / there)

    def move(self, here: str, there: str) -> bool:
        """As SparkFiles does for such a folder."""
        return move_new(self._folder / here, self._folder / there)
