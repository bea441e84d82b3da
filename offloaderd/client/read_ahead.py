"""What a read gives, and the answers that are fetched before they are asked for: so many that a pause holds little.

They are bounded by number, not by bytes: to weigh an answer costs as much as to read it, and the daemon bounds each
(read.batch_bytes).
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from offloaderd.core.errors import Closed
from offloaderd.protocol.conversion import decoded_read_response

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.core.model import EntryBatch
    from offloaderd.protocol.v1 import common_pb2


class ReadAnswer(NamedTuple):
    """Consecutive entries of one ledger, and the tier that served them."""

    batch: EntryBatch
    tier: common_pb2.Tier.ValueType


def read_answer(message: bytes, address: str) -> ReadAnswer:
    """Return what a serialized ReadResponse of the daemon at `address` says. Raises CorruptData."""
    return ReadAnswer(*decoded_read_response(message, where=f"an answer of {address}"))


class Ahead:
    """At most `answers_max` answers that nobody has taken yet; one at least."""

    def __init__(self, answers_max: int) -> None:
        self._answers_max = max(1, answers_max)
        self._answers: deque[ReadAnswer] = deque()
        self._changed = asyncio.Event()
        self._end: Exception | None = None
        self._ended = False

    async def fill(self, answers: AsyncGenerator[ReadAnswer, None]) -> None:
        """Take answers in, waiting while there is no room; their error is raised by `take`, behind what came before."""
        self._end = Closed("the client was closed during a read")
        try:
            async with aclosing(answers):
                async for answer in answers:
                    self._answers.append(answer)
                    self._changed.set()
                    while len(self._answers) >= self._answers_max:
                        self._changed.clear()
                        await self._changed.wait()
            self._end = None
        except Exception as error:  # noqa: BLE001 - whatever it is, the reader gets it
            self._end = error
        finally:
            self._ended = True
            self._changed.set()

    async def take(self) -> ReadAnswer | None:
        """Return the next answer, None at the end. Raises what ended the answers."""
        while not self._answers:
            if self._ended:
                if self._end is not None:
                    raise self._end
                return None
            self._changed.clear()
            await self._changed.wait()
        answer = self._answers.popleft()
        self._changed.set()
        return answer
