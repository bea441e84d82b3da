"""What is fetched before it is asked for: bounded in bytes, so that a reader that pauses holds nothing else up."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING

from offloaderd.errors import Closed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.rpc.v1 import read_pb2


class Ahead:
    """At most `bytes_max` of answers that nobody has taken yet, and always room for one."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._answers: deque[tuple[read_pb2.ReadResponse, int]] = deque()
        self.held_bytes = 0
        self._changed = asyncio.Event()
        self._end: Exception | None = None
        self._ended = False

    async def fill(self, answers: AsyncGenerator[read_pb2.ReadResponse, None]) -> None:
        """Take answers in, waiting while there is no room; their error is raised by `take`, behind what came before."""
        self._end = Closed("the client was closed during a read")
        try:
            async with aclosing(answers):
                async for answer in answers:
                    answer_bytes = answer.ByteSize()
                    self._answers.append((answer, answer_bytes))
                    self.held_bytes += answer_bytes
                    self._changed.set()
                    while self.held_bytes > self._bytes_max:
                        self._changed.clear()
                        await self._changed.wait()
            self._end = None
        except Exception as error:  # noqa: BLE001 - whatever it is, the reader gets it
            self._end = error
        finally:
            self._ended = True
            self._changed.set()

    async def take(self) -> read_pb2.ReadResponse | None:
        """Return the next answer, None at the end. Raises what ended the answers."""
        while not self._answers:
            if self._ended:
                if self._end is not None:
                    raise self._end
                return None
            self._changed.clear()
            await self._changed.wait()
        answer, answer_bytes = self._answers.popleft()
        self.held_bytes -= answer_bytes
        self._changed.set()
        return answer
