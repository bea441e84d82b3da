"""Layouts of data objects: the values that, beside the entries, decide their bytes."""

from dataclasses import dataclass

from offloaderd.format.v2.blocks import PREAMBLE


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLayout:
    """The values that decide the bytes of a whole ledger's object (PIP-17): the settings, and the ledger.

    A block is at most `block_bytes` long unless one entry is longer. The manifest has a checksum for each run of about
    `run_bytes`; a `dense_index` has an entry for each. `metadata` is BookKeeper's LedgerMetadataFormat.
    """

    block_bytes: int
    part_bytes: int
    run_bytes: int
    dense_index: bool
    entries: int
    payload_bytes: int
    metadata: bytes

    @property
    def preamble_bytes(self) -> int:
        """No pad bytes."""
        return 0
