"""Ranged GETs: an answer that is not what was asked for is refused before its body is read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn, cast

import pytest

from offloaderd.core.errors import Transient
from offloaderd.objects.failures import Request
from offloaderd.objects.ranged import RangedGet
from offloaderd.objects.request import Call

if TYPE_CHECKING:
    from aiohttp import ClientResponse


class Whole:
    """The answer of a server, or of a proxy, that knows no ranges; its body does not fit into memory."""

    status = 200
    content_length = 5 << 30

    def __init__(self, **headers: str) -> None:
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    @property
    def content(self) -> NoReturn:
        """The body."""
        raise AssertionError("it is read")


@pytest.mark.parametrize("answered", ["", "bytes 0-5368709119/5368709120"])
async def test_a_whole_object_instead_of_a_range_is_not_read(answered: str) -> None:
    """Memory was reserved for the range alone."""
    request = Request(operation="GetObject", where="k in b", write=False, section="objects")
    answer = cast("ClientResponse", Whole(Content_Range=answered) if answered else Whole())
    with pytest.raises(Transient, match=r"which bytes it sent|asked for bytes"):
        await RangedGet("k", 0, 1000).read(Call(request, asyncio.timeout(None)), answer, 1000)
