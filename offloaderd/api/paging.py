"""Pages of lists: `page_size` and `page_token` of a request, `next_page_token` of its answer (AIP-158).

A token names the last element of its page, so what comes and goes meanwhile moves no other element into another page.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from offloaderd.core.errors import InvalidInput

T = TypeVar("T")


class Paged(Protocol):
    """The request of a list."""

    page_size: int
    page_token: str


def page(request: Paged, items: Sequence[T], name: Callable[[T], str]) -> tuple[Sequence[T], str]:
    """Return the elements that a request asks for, and the token of the next page.

    The list is in any order that stays the same between two calls. Raises InvalidInput for a token of another list, and
    for one whose element has gone from a list that is not in the order of its names.
    """
    begin = _after(request.page_token, [name(one) for one in items]) if request.page_token else 0
    end = min(begin + request.page_size, len(items)) if request.page_size else len(items)
    following = _token(name(items[end - 1])) if begin < end < len(items) else ""
    return items[begin:end], following


def _after(token: str, names: Sequence[str]) -> int:
    """Return the index behind the element that a token names."""
    last = _name(token)
    if last in names:
        return names.index(last) + 1
    if list(names) == sorted(names):
        return sum(one < last for one in names)
    raise InvalidInput(f"the list has no {last!r} any more", hint="begin again without page_token")


def _token(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _name(token: str) -> str:
    try:
        return base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidInput(
            f"{token!r} is no page_token of this daemon", hint="give `next_page_token` of the answer before, or none"
        ) from None
