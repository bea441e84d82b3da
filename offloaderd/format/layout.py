"""What decides the bytes of a data object beside its entries: how they are cut into blocks and parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offloaderd.format.entries import framed_bytes
from offloaderd.format.v2 import BLOCK_HEADER_BYTES, PAD_BYTES_MIN, PREAMBLE

if TYPE_CHECKING:
    from offloaderd.format.manifest import BlockInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLayout:
    """The settings that decide an object's bytes: target sizes of blocks and parts, and the preamble option."""

    block_bytes: int
    part_bytes: int
    preamble: bool = False

    @property
    def preamble_bytes(self) -> int:
        """Pad bytes before the first block."""
        return len(PREAMBLE) if self.preamble else 0


def payload_bytes(block: BlockInfo) -> int:
    """Return the payload bytes in a block that was written with the least padding, as all of ours are."""
    return block.length - BLOCK_HEADER_BYTES - PAD_BYTES_MIN - framed_bytes(0, block.entry_count)
