"""What seeks have found, and what they took."""

from __future__ import annotations

from offloaderd.core.metrics.families import Families, counter


class SeekMetrics(Families):
    """The part of the metrics that is about finding entries by time, message index or sequence number."""

    seeks = counter(
        "Seeks by what they went by and what answered: manifests, one block or entry, a scan of several, nothing "
        "there yet. Many scans: topics whose segments are of older versions, or lie in the source still.",
        kind=("time", "index", "sequence"),
        outcome=("manifest", "block", "scan", "nothing", "error"),
    )
    seek_bytes = counter(
        "Bytes that seeks read, blocks of the bucket and entries of the ledger source.", source=("objects", "source")
    )
