"""Errors that only a read gives; each is a kind of what `offloaderd.core.errors` knows.

Readers act on two of them in opposite ways: what was deleted is skipped, and what nobody can tell is waited for. So
EntriesDeleted is said only of what was deleted on purpose and on record.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from offloaderd.core.errors import Conflict, CorruptData, InvalidInput, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


class MapUnknown(Conflict):
    """Nothing is on record of what was asked for, not even its deletion: the map may be empty, old, or another's."""


class TopicUnknown(MapUnknown):
    """Nothing is on record of the whole topic: no policy, no segment, no deletion."""


@contextmanager
def reported(report: Callable[[CorruptData], None]) -> Iterator[None]:
    """Have damage that is found inside reported."""
    try:
        yield
    except CorruptData as error:
        report(error)
        raise
