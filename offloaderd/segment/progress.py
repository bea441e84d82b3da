"""Keeps the record of an attempt near what is stored of it, so that another owner can go on behind the last part.

Rules: one update at a time, and no more of them than the metadata store should bear: each rewrites the whole record,
which grows with the segment. What the record lacks, because it lags or is as large as it may become, is read again by
the next owner, compared, and not sent again.
"""

import asyncio
from dataclasses import replace

from offloaderd.core.aio.signal import race
from offloaderd.core.clock import Clock
from offloaderd.metadata.records.attempt import Attempt, Seal, StoredPart
from offloaderd.segment.claim.attempt_log import AttemptLog

PAUSE_MIN_S = 0.2
RECORD_BYTES_PER_S = 128 * 1024
"""What one topic may write into the metadata store: a record of 700 kB at most every 5 s."""

RECORD_BYTES_MAX = 700_000
"""The store takes nodes of about 1 MB; parts whose blocks do not fit are left out."""

HEAD_BYTES = 4096
"""What is reserved for the rest of the record."""


class Progress:
    """The record of one attempt, written under one claim."""

    def __init__(self, log: AttemptLog, attempt: Attempt, *, epoch: int, clock: Clock) -> None:
        self.attempt = attempt
        """As it is recorded."""
        self._log = log
        self._epoch = epoch
        self._clock = clock
        self._stored: dict[int, StoredPart] = dict(enumerate(attempt.parts, start=1))
        self._parts = list(attempt.parts)  # what the next update records
        self._parts_bytes = sum(len(part.encoded) for part in attempt.parts)
        self._written_s = clock.monotonic()
        self._writing = asyncio.Lock()  # who writes the node has to know its version
        self._change_signal = asyncio.Event()
        self._ended = asyncio.Event()

    def stored(self, part_number: int, part: StoredPart) -> None:
        """A part is in the bucket."""
        self._stored[part_number] = part
        while (following := self._stored.get(len(self._parts) + 1)) is not None:
            if HEAD_BYTES + self._parts_bytes + len(following.encoded) > RECORD_BYTES_MAX:
                break
            self._parts.append(following)
            self._parts_bytes += len(following.encoded)
            self._change_signal.set()

    async def run(self) -> None:
        """Record the parts as they are stored, until `end`. Raises Fenced."""
        while not self._ended.is_set():
            await race(self._change_signal.wait(), self._ended.wait())
            pause_s = max(PAUSE_MIN_S, self._parts_bytes / RECORD_BYTES_PER_S)
            await race(self._clock.sleep(self._written_s + pause_s - self._clock.monotonic()), self._ended.wait())
            if self._change_signal.is_set():
                await self._write()

    def end(self) -> None:
        """Let `run` record what it has not, and return."""
        self._ended.set()

    async def note_upload(self, upload_id: str) -> None:
        """Record the multipart upload. Raises Fenced."""
        await self._write(upload_id=upload_id)

    async def note_seal(self, seal: Seal) -> None:
        """Record where the segment ends. Raises Fenced."""
        await self._write(seal=seal)

    async def _write(self, *, upload_id: str | None = None, seal: Seal | None = None) -> None:
        async with self._writing:
            self._change_signal.clear()
            before = self.attempt
            attempt = replace(
                before,
                epoch=self._epoch,
                upload_id=before.upload_id if upload_id is None else upload_id,
                parts=tuple(self._parts),
                seal=seal or before.seal,
            )
            await self._log.update(attempt)
            self.attempt = attempt
            self._written_s = self._clock.monotonic()
