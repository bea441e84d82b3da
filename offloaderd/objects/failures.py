"""Errors of object stores over HTTP as ours, with a remedy for operators: the mechanism that all of them share.

Three questions decide. Did the server answer? Then its error code is looked up in the table of its kind, and an unknown
code goes by the HTTP status. Was the request sent at all? If not, it may simply be retried. Was it a write? Then its
outcome is unknown until it is read back after a lost answer, and after 500, 502 and 504, which do not say what was
carried out.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from offloaderd.core.errors import (
    Conflict,
    Denied,
    InvalidInput,
    NoSpace,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    Throttled,
    Transient,
)

HINT_ENDPOINT = "check that the server runs and that objects.endpoint is right"
HINT_REDIRECT = "correct objects.endpoint, or the proxy on the way: redirections are not followed"
HINT_SPACE = "free space or raise the quota on the store"
_UNSURE_STATUSES = {500, 502, 504}


class Verdict(NamedTuple):
    """Our error and remedy for an error code; `{right}` in a remedy is the right that the request needs."""

    kind: type[OffloaderError]
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for messages; `write` decides whether a lost answer leaves the outcome unknown.

    `section` is the table of the settings that remedies name.
    """

    operation: str
    where: str
    write: bool
    section: str = "objects"


class Failure(NamedTuple):
    """Our error, and the code for the metrics."""

    error: OffloaderError
    code: str


_SETTING = re.compile(r"(?<![\w.])objects\.(?!services)(?=[a-z])")


def in_section(text: str, section: str) -> str:
    """Return a text with settings of `objects` named as those of another table."""
    return _SETTING.sub(f"{section}.", text)


@contextmanager
def hints_in(section: str) -> Iterator[None]:
    """Name the settings in remedies of our errors as those of another table."""
    try:
        yield
    except OffloaderError as error:
        error.hint = in_section(error.hint, section)
        raise


def by_code(meanings: Iterable[tuple[Verdict, str]]) -> dict[str, Verdict]:
    """Return a table by code of verdicts with their codes, which blanks separate."""
    return {code: verdict for verdict, codes in meanings for code in codes.split()}


class Answers:
    """The error answers of one kind of store: its codes, and the rights that its operations need."""

    def __init__(self, codes: Mapping[str, Verdict], rights: Mapping[str, str], *, keys: str, right: str) -> None:
        """Take the table of codes and the rights by operation; remedies for wrong keys and a missing right."""
        self._codes = codes
        self._rights = rights
        # For answers without a code (HEAD has no body) or with an unknown one.
        self._statuses = {
            400: Verdict(InvalidInput),
            401: Verdict(Denied, keys),
            403: Verdict(Denied, right),
            404: Verdict(NotFound),
            408: Verdict(Transient),
            409: Verdict(Conflict),
            412: Verdict(Conflict),
            416: Verdict(InvalidInput),
            429: Verdict(Throttled),
            503: Verdict(Throttled),
            507: Verdict(NoSpace, HINT_SPACE),
        }

    def verdict(self, operation: str, code: str, status: int) -> Verdict:
        """Return class and remedy for an error code and HTTP status."""
        found = self._codes.get(code) or self._statuses.get(status)
        if found is None and 300 <= status < 400:
            found = Verdict(Transient, HINT_REDIRECT)  # of a proxy, or of another endpoint: nothing was carried out
        if found is None:
            found = Verdict(Transient) if status >= 500 else Verdict(InvalidInput)
        return Verdict(found.kind, found.hint.format(right=self._rights[operation]))

    def failure(self, request: Request, code: str, words: str, status: int) -> Failure:
        """Return the failure for an error answer of the server, with its words."""
        kind, hint = self.verdict(request.operation, code, status)
        if kind is Transient and request.write and status in _UNSURE_STATUSES:
            kind = OutcomeUnknown
        said = f"{code}: {words}" if words and words != code else code
        return Failure(kind(line(request, said), hint=hint), code)


def unreachable(what: str, request: Request, *, hint: str = HINT_ENDPOINT) -> Failure:
    """Return the failure of a request that was never sent."""
    return Failure(Transient(line(request, f"no connection: {what}"), hint=hint), "unreachable")


def lost(what: str, request: Request, code: str) -> Failure:
    """Return the failure of a request that was sent and got no complete answer."""
    kind = OutcomeUnknown if request.write else Transient
    return Failure(kind(line(request, f"the answer was lost: {what}"), hint=HINT_ENDPOINT), code)


def line(request: Request, what: str) -> str:
    """Return the message of an error."""
    return f"{request.operation} {request.where}: {what}"
