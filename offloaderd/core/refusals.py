"""Kinds of refusals: mismatches between metadata, bucket and source."""

from enum import StrEnum


class RefusalKind(StrEnum):
    """A mismatch for which a topic is refused."""

    METADATA_WENT_BACK = "metadata-went-back"
    """The bucket has segments of this topic that are newer than the metadata."""
    OTHER_DEPLOYMENT = "other-deployment"
    """Another deployment writes this topic under the same prefix."""
    HEAD_UNREADABLE = "head-unreadable"
    """The topic's head in the bucket is damaged, so either of the two above is possible."""
    OTHER_SOURCE = "other-source"
    """The ledger source differs from the one that the ledgers were offloaded from."""
    UNKNOWN_SOURCE = "unknown-source"
    """No source is on record, and the list of this one has no offloaded ledger."""
    LIST_BEHIND = "list-behind"
    """The newest ledger of the source's list is older than the committed ones."""
    LEDGER_REPLACED = "ledger-replaced"
    """A ledger with a known id was created at another time."""
    LEDGER_SHORTER = "ledger-shorter"
    """A closed ledger has fewer entries than are committed."""
