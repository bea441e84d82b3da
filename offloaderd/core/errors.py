"""The error tree: few kinds, one for each thing a caller can do about it.

Every error says what was wrong and, where an operator can act, carries a `hint` with the next step. Adapters turn
the exceptions of their libraries into these in one place; nothing else crosses a port.

Readers skip deleted entries, and wait for entries whose state is unknown. So EntriesDeleted is raised only for entries
whose deletion was decided and is on record.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class OffloaderError(Exception):
    """Root of everything that offloaderd raises on purpose."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Message and hint in one line, as an operator reads it."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class Transient(OffloaderError):
    """It may work if tried again: time-outs, refused connections, 5xx."""


class Throttled(Transient):
    """The other side asked for fewer requests (503 SlowDown, 429)."""


class OutcomeUnknown(Transient):
    """The request may or may not have been carried out: read back before judging or trying again."""


class Denied(OffloaderError):
    """Credentials or rights are missing; only an operator can help."""


class Unauthenticated(Denied):
    """The caller has no identity: no certificate or token, or one that is not accepted."""


class Expired(Denied):
    """The credentials were good once: they are read again before the next try, which may well work."""


class NoSpace(OffloaderError):
    """The disk, quota or node is full."""


class NotFound(OffloaderError):
    """What was named does not exist."""


class BucketMissing(NotFound):
    """The bucket itself (or the root directory) does not exist, so nothing in it can be judged missing."""


class Conflict(OffloaderError):
    """Somebody else changed or created it first."""


class Fenced(Conflict):
    """This daemon no longer owns the topic: stop at once, change nothing, never retry."""


class LedgerUnknown(Conflict):
    """Entries were pushed of a ledger that the daemon's ledger source does not know, so they could not be verified."""


class InvalidInput(OffloaderError):
    """A caller's argument cannot be right: a malformed name, a reversed range, an oversized entry."""


class DomainNotCovered(InvalidInput):
    """The topic exists in a domain of Pulsar's that this release does not offload: none of its entries are stored."""


class InvalidConfig(OffloaderError):
    """The configuration cannot work; `message` lists every mistake found. Commands exit with code 2."""


class IdentityRefused(OffloaderError):
    """Metadata, bucket or source may be of another history: nothing is deleted until an operator has looked."""


class Closed(OffloaderError):
    """The component has been closed or is draining."""


class CorruptData(OffloaderError):
    """Stored bytes are not what was written: alarm, never retry, never hand them out.

    `key` names the object, `offset` the first byte of the field that is wrong.
    """

    def __init__(self, *, key: str, offset: int, expected: object, found: object, hint: str = "") -> None:
        super().__init__(
            f"corrupt data in {key} at byte {offset}: expected {expected}, found {found}",
            hint=hint,
        )
        self.key = key
        self.offset = offset
        self.expected = expected
        self.found = found


class NewerRecord(CorruptData):
    """A later release wrote it in a way that this one would misread: leave it, and all that depends on it, alone."""

    def __init__(self, key: str, *, found: int, known: int) -> None:
        OffloaderError.__init__(
            self,
            f"{key} was written by a newer offloaderd: format {found}, this release reads up to {known}",
            hint="nothing of it is changed or deleted; upgrade this daemon, or stop it and leave it to newer ones",
        )
        self.key, self.offset, self.expected, self.found = key, 0, f"format {known} or less", found


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


class Unsound(OffloaderError):
    """A stored copy of a ledger is not what it has to be; `reason` names the kind of fault for metrics."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message, hint="the source keeps the ledger; docs/failures.md says what to do")
        self.reason = reason


@contextmanager
def reported(report: Callable[[CorruptData], None]) -> Iterator[None]:
    """Have damage that is found inside reported."""
    try:
        yield
    except CorruptData as error:
        report(error)
        raise


def first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one error of a group that says what to do; the others are its consequences, or come again.

    What ends the process goes first, then what must stop the work, then the rest of ours. It is to be raised in an
    `except BaseExceptionGroup` clause: what `except*` raises is put into a group again by some versions of Python.
    """
    flat: list[BaseException] = []
    rest: list[BaseException] = [errors]
    while rest:
        error = rest.pop(0)
        if isinstance(error, BaseExceptionGroup):
            rest[:0] = error.exceptions
        else:
            flat.append(error)
    return min(flat, key=_urgency)


def _urgency(error: BaseException) -> int:
    match error:
        case Fenced() | CorruptData():
            return 1
        case OffloaderError():
            return 2
        case Exception():
            return 3
        case _:
            return 0
