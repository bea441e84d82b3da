"""The error tree: few kinds, each for one reaction of the caller.

Every error describes the fault and, if an operator can act, has a `hint` with the next step. Each adapter translates
the exceptions of its libraries into these in one place; no others cross a port. Readers skip deleted entries, and wait
for entries in an unknown state. So EntriesDeleted is raised only for entries whose deletion is on record.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class OffloaderError(Exception):
    """Root of all errors that offloaderd raises on purpose."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Message and hint in one line, for operators."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class Transient(OffloaderError):
    """A retry may succeed: time-outs, refused connections, 5xx."""


class Throttled(Transient):
    """The server asked for fewer requests (503 SlowDown, 429)."""


class OutcomeUnknown(Transient):
    """The request may or may not have been carried out: read back before a decision or a retry."""


class Denied(OffloaderError):
    """Credentials or rights are missing; only an operator can help."""


class Unauthenticated(Denied):
    """The caller has no identity: no certificate or token, or one that is not accepted."""


class Expired(Denied):
    """The credentials have expired: they are read again before the next try, which may well succeed."""


class Archived(Denied):
    """The object is in an archive: nobody can read it before an operator has restored it."""


class NoSpace(OffloaderError):
    """The disk, quota or node is full."""


class NotFound(OffloaderError):
    """The named object, node or topic does not exist."""


class BucketMissing(NotFound):
    """The bucket itself (or the root directory) does not exist, so nothing is known about its objects."""


class Conflict(OffloaderError):
    """Another process changed or created it first."""


class Fenced(Conflict):
    """This daemon no longer owns the topic: stop at once, change nothing, never retry."""


class LedgerUnknown(Conflict):
    """Entries were pushed of a ledger that is not in the daemon's ledger source, so they could not be verified."""


class InvalidInput(OffloaderError):
    """A caller's argument is invalid: a malformed name, a reversed range, an oversized entry."""


class DomainNotCovered(InvalidInput):
    """The topic is in a domain of Pulsar's that this release does not offload: none of its entries are stored."""


class InvalidConfig(OffloaderError):
    """The configuration is invalid; `message` lists every mistake. Commands exit with code 2."""


class IdentityRefused(OffloaderError):
    """Metadata, bucket or source may belong to another history: nothing is deleted until an operator accepts it."""


class Closed(OffloaderError):
    """The component has been closed or is draining."""


class CorruptData(OffloaderError):
    """Stored bytes differ from the written ones: alarm, never retry, never deliver them.

    `key` names the object, `offset` the first byte of the wrong field.
    """

    def __init__(self, *, key: str, offset: int, expected: object, found: object, hint: str = "") -> None:
        super().__init__(f"corrupt data in {key} at byte {offset}: expected {expected}, found {found}", hint=hint)
        self.key = key
        self.offset = offset
        self.expected = expected
        self.found = found


class NewerRecord(CorruptData):
    """A later release wrote it in a format that this one would misread: change neither it nor its dependents."""

    def __init__(self, key: str, *, found: int, known: int) -> None:
        OffloaderError.__init__(
            self,
            f"{key} was written by a newer offloaderd: format {found}, this release reads up to {known}",
            hint="nothing of it is changed or deleted; upgrade this daemon, or stop it and leave it to newer ones",
        )
        self.key, self.offset, self.expected, self.found = key, 0, f"format {known} or less", found


class TopicNotFound(NotFound):
    """The topic is neither in the ledger source nor in the bucket, and has no policy."""


class OutOfRange(InvalidInput):
    """The range is wholly or in part beyond the newest entry; the message has the existing range."""


class EntriesMissing(NotFound):
    """Entries of the range are in no tier, or it is unknown whether they exist: a gap is never skipped."""


class EntriesLost(EntriesMissing):
    """Entries of the range were, or may have been, deleted before they were offloaded; the hint says how to read on."""


class EntriesDeleted(EntriesMissing):
    """Entries of the range were offloaded and deleted again by the topic's retention; the hint says which exist."""


class MapUnknown(Conflict):
    """There is no record of it, not even of its deletion: the map may be empty, old, or another deployment's."""


class TopicUnknown(MapUnknown):
    """There is no record of the whole topic: no policy, no segment, no deletion."""


class Unsound(OffloaderError):
    """A stored copy of a ledger is faulty; `reason` names the kind of fault for metrics."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message, hint="the source keeps the ledger; docs/failures.md says what to do")
        self.reason = reason


@contextmanager
def reported(report: Callable[[CorruptData], None]) -> Iterator[None]:
    """Report damage that is found within the `with` block."""
    try:
        yield
    except CorruptData as error:
        report(error)
        raise


def first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the most important error of a group; the others follow from it, or will be raised again.

    The order: errors that end the process, errors that must stop the work, our other errors. Raise it in an `except
    BaseExceptionGroup` clause: what `except*` raises is put into a group again by some versions of Python.
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
