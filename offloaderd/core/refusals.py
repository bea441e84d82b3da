"""What does not fit together: metadata, bucket and source, as refusals name it."""

from enum import StrEnum


class RefusalKind(StrEnum):
    """What does not fit together."""

    METADATA_WENT_BACK = "metadata-went-back"
    """The bucket has segments of this topic that are newer than the metadata."""
    OTHER_DEPLOYMENT = "other-deployment"
    """Another deployment writes this topic under the same prefix."""
    HEAD_UNREADABLE = "head-unreadable"
    """The topic's head is in the bucket and damaged: it may have said either of the two above."""
    OTHER_SOURCE = "other-source"
    """The ledger source is another one than the ledgers were offloaded from."""
    UNKNOWN_SOURCE = "unknown-source"
    """No source is on record, and the list of this one has no ledger that is offloaded."""
    LIST_BEHIND = "list-behind"
    """The newest ledger of the source's list is older than what is committed."""
    LEDGER_REPLACED = "ledger-replaced"
    """A ledger of a known number was created at another time."""
    LEDGER_SHORTER = "ledger-shorter"
    """A closed ledger has fewer entries than are committed of it."""
