"""Values from files that are read again when the files change; a failed read leaves the last value."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from offloaderd.core.errors import OffloaderError

T = TypeVar("T")
log = structlog.get_logger(__name__)


class Watched(Generic[T]):
    """Value made of files. The first read raises as `load`; a later failure is logged."""

    def __init__(self, paths: Iterable[Path], load: Callable[[], T]) -> None:
        self._paths = tuple(paths)
        self._load = load
        self._signature = self._stat()
        self.value = load()
        self.failing = False
        self._listeners: list[Callable[[T], None]] = []

    def listen(self, listener: Callable[[T], None]) -> None:
        """Call `listener` with every later value."""
        self._listeners.append(listener)

    def refresh(self) -> bool:
        """Read again if a file has changed, or if the last read failed; return whether there is a new value."""
        signature = self._stat()
        if signature == self._signature and not self.failing:
            return False
        files = [str(path) for path in self._paths]
        try:
            value = self._load()
        except OffloaderError as error:
            if not self.failing or signature != self._signature:
                log.warning("files.not_reloaded", files=files, error=str(error))
            self._signature, self.failing = signature, True
            return False
        self._signature, self.failing = signature, False
        if value == self.value:
            return False
        self.value = value
        log.info("files.reloaded", files=files)
        for listener in self._listeners:
            listener(value)
        return True

    def _stat(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_signature, self._paths))


def _signature(path: Path) -> tuple[int, int, int] | None:
    """Return values that change with a file's content: Kubernetes swaps links, others rename or write in place."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
