"""The settings of ledger-based offloading; see sections.py."""

from __future__ import annotations

from pydantic import Field

from offloaderd.config.kinds import Bytes
from offloaderd.config.section import Section

MiB = 1024**2


class LedgerBasedSettings(Section):
    """Whole ledgers in objects as Pulsar writes them (PIP-17), for topics whose policy has the method ledger-based."""

    block_bytes: Bytes = Field(default=64 * MiB, ge=5 * MiB, le=1024 * MiB)
    """Size of a block (Pulsar's s3ManagedLedgerOffloadMaxBlockSizeInBytes). A block is written and read in runs of
    offload.block_bytes, so it takes no memory; equal sizes give objects equal to Pulsar's."""

    dense_index: bool = False
    """Whether the index lists every run of a block and not the block alone. Pulsar's own reader then finds an entry
    with one request where it otherwise reads from the block's begin; the index is no longer equal to one that Pulsar
    writes."""
