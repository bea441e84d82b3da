"""Errors that only a read gives; each is a kind of what `offloaderd.errors` knows."""

from __future__ import annotations

from offloaderd.errors import InvalidInput, NotFound


class TopicNotFound(NotFound):
    """Neither the ledger source, nor the bucket, nor a policy knows the topic."""


class OutOfRange(InvalidInput):
    """The range lies, wholly or in part, beyond the newest entry; the message says what exists."""


class EntriesMissing(NotFound):
    """Entries of the range are in no tier, or nobody can say whether there are any: a gap is never skipped."""


class EntriesLost(EntriesMissing):
    """Entries of the range were deleted before they were offloaded, or may have been; the hint says how to read on."""


class EntriesDeleted(EntriesMissing):
    """Entries of the range were offloaded and deleted again by the topic's retention; the hint says what there is."""
