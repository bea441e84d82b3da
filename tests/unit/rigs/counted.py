"""A metadata store in memory that notes what is read of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.testing.memory.metadata import MemoryMetadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.metadata.port import Versioned
    from offloaderd.testing.memory.metadata import MemoryTree


class CountedMetadata(MemoryMetadata):
    """Notes the path of each read, in order."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.reads: list[str] = []

    async def get(self, path: str) -> Versioned:
        """Note a read of a node."""
        self.reads.append(path)
        return await super().get(path)

    async def children(self, path: str) -> Sequence[str]:
        """Note a read of names."""
        self.reads.append(path)
        return await super().children(path)

    def below(self, path: str) -> list[str]:
        """Return what was read at a path and below it since the last call."""
        found, self.reads = [one for one in self.reads if f"{one}/".startswith(f"{path}/")], []
        return found
