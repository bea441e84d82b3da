"""Pages of lists: `page_size` and `page_token` of a request, `next_page_token` of its answer (AIP-158).

A token names the last element of its page, so what comes and goes meanwhile moves no other element into another page.
It begins with a checksum of what its list was asked for, and so is of no use for another list or another topic; that of
a ranked list has one of its order as well.
"""

import base64
import binascii
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from offloaderd.core.errors import InvalidInput

T = TypeVar("T")


MARK_BYTES = 4


class Paged(Protocol):
    """The request of a list."""

    DESCRIPTOR: Any
    page_size: int
    page_token: str

    def ListFields(self) -> Any:  # noqa: ANN401 - as protobuf names and types it
        """Return the fields that are set, with their values."""


def page(
    request: Paged, items: Sequence[T], name: Callable[[T], str], *, ranked: bool = False
) -> tuple[Sequence[T], str]:
    """Return the elements that a request asks for, and the token of the next page.

    The list is in any order that stays the same between two calls; `ranked`: in one that may change, and then a token
    holds for the list of its page alone. Raises InvalidInput for a token of another list, for one whose element has
    gone from a list that is not in the order of its names, and for one of a ranked list that has changed.
    """
    names = [name(one) for one in items]
    mark, order = _mark(request), _checksum("\n".join(names)) if ranked else b""
    begin = _after(_name(request.page_token, mark, order), names) if request.page_token else 0
    end = min(begin + request.page_size, len(items)) if request.page_size else len(items)
    following = _token(mark + order, names[end - 1]) if begin < end < len(items) else ""
    return items[begin:end], following


def _after(last: str, names: Sequence[str]) -> int:
    """Return the index behind the last element of the page before."""
    if last in names:
        return names.index(last) + 1
    if list(names) == sorted(names):
        return sum(one < last for one in names)
    raise InvalidInput(f"the list has no {last!r} any more", hint="begin again without page_token")


def _mark(request: Paged) -> bytes:
    """Return a checksum of the kind of list, and of what else the request says."""
    said = [(one.name, value) for one, value in request.ListFields() if not one.name.startswith("page_")]
    return _checksum(f"{request.DESCRIPTOR.name} {said}")


def _checksum(text: str) -> bytes:
    return zlib.crc32(text.encode()).to_bytes(MARK_BYTES)


def _token(marks: bytes, name: str) -> str:
    return base64.urlsafe_b64encode(marks + name.encode()).decode().rstrip("=")


def _name(token: str, mark: bytes, order: bytes) -> str:
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        if data.startswith(mark + order):
            return data[len(mark + order) :].decode()
        if data.startswith(mark):
            raise InvalidInput("the order of the list has changed", hint="begin again without page_token")
    except (binascii.Error, ValueError):
        pass
    raise InvalidInput(
        f"{token!r} is no page_token of this list", hint="give `next_page_token` of the answer before, or none"
    )
