"""The compiled loops over entries (`native/`) beside those in Python, in turns: CPU seconds for a GiB of payloads.

Blocks and answers are many more than a core's cache holds, and so are the payloads that are kept.
"""

from __future__ import annotations

import os
import time
from collections import deque
from itertools import cycle, islice
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c
import pytest

from bench.load import MIB
from bench.report import Figure
from bench.usage import GIB
from offloaderd.bookkeeper.wire import v2
from offloaderd.bookkeeper.wire.entry import ENTRY_HEADER, DigestType, EntryChecker
from offloaderd.core import native
from offloaderd.core.entries import decode_entries, frame
from tests.loops import in_python

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.scale import Scale
    from bench.site import Site

DISTINCT = 16
KEPT = 8
LEDGER = 7


class Work(NamedTuple):
    """Batches of 1 MiB of entries of one size, as blocks and as answers of a bookie."""

    entries: int
    blocks: list[bytes]
    answers: list[bytes]

    @classmethod
    def of(cls, entry_bytes: int) -> Work:
        """Make batches that differ."""
        count = max(1, MIB // entry_bytes)
        payloads = [[os.urandom(entry_bytes) for _ in range(count)] for _ in range(DISTINCT)]
        return cls(count, [b"".join(frame(0, one)) for one in payloads], [_answer(one) for one in payloads])


def _answer(payloads: list[bytes]) -> bytes:
    """Return the answer of a bookie to a batch read, as v2 has it."""
    parts, length = [v2.BATCH_ANSWER.pack(v2.VERSION, v2.BATCH_READ, 0, 0, LEDGER, 0, 1)], 0
    for entry_id, payload in enumerate(payloads):
        length += len(payload)
        header = ENTRY_HEADER.pack(LEDGER, entry_id, entry_id - 1, length)
        digest = google_crc32c.extend(google_crc32c.value(header), payload)
        stored = header + digest.to_bytes(4, "big") + payload
        parts += (v2.BATCH_ENTRY.pack(len(stored)), stored)
    message = b"".join(parts)
    return len(message).to_bytes(4, "big") + message


async def loops(site: Site, size: Scale) -> list[Figure]:
    """Measure blocks and answers with each size of entries; the servers are not used."""
    del site
    figures: list[Figure] = []
    for label, entry_bytes in size.entry_sizes.items():
        work = Work.of(entry_bytes)
        checker = EntryChecker(LEDGER, DigestType.CRC32C)

        def payloads_of(block: bytes, count: int = work.entries) -> list[bytes]:
            return decode_entries(block, start=0, end=len(block), first_entry_id=0, count=count, key="", at=0)

        def checked(answer: bytes, check: EntryChecker = checker) -> list[bytes]:
            (found,) = v2.Decoder().feed(answer)
            if not isinstance(found, v2.BatchAnswer) or (run := check.check_run(0, found.entries)).error:
                raise RuntimeError("an answer is damaged")
            return run.payloads

        for what, call, batches in (
            ("blocks", payloads_of, work.blocks),
            ("answers of bookies", checked, work.answers),
        ):
            rounds = [_both(call, batches, work.entries * entry_bytes, size.segment_bytes) for _ in range(size.runs)]
            figures.append(
                Figure(
                    benchmark=f"compiled loops, {label}",
                    figure=f"CPU of taking payloads out of {what}, over that of Python",
                    values=[one[0] / one[1] for one in rounds],
                    more_is_better=False,
                    notes={
                        "compiled": f"{median(one[0] for one in rounds):.2f} s/GiB",
                        "Python": f"{median(one[1] for one in rounds):.2f} s/GiB",
                    },
                )
            )
    return figures


def _both(
    call: Callable[[bytes], list[bytes]], batches: list[bytes], batch_bytes: int, total_bytes: int
) -> tuple[float, float]:
    """Return the CPU seconds for a GiB with the compiled loops and with those in Python."""
    if not native.IN_USE:
        raise RuntimeError("offloaderd-native is not installed: it needs a C compiler (make setup)")
    compiled = _seconds(call, batches, batch_bytes, total_bytes)
    with pytest.MonkeyPatch.context() as patch:
        in_python(patch)
        return compiled, _seconds(call, batches, batch_bytes, total_bytes)


def _seconds(call: Callable[[bytes], list[bytes]], batches: list[bytes], batch_bytes: int, total_bytes: int) -> float:
    kept: deque[list[bytes]] = deque(maxlen=KEPT)
    turns = max(DISTINCT, total_bytes // batch_bytes)
    begun_s = time.process_time()
    for batch in islice(cycle(batches), turns):
        kept.append(call(batch))
    return (time.process_time() - begun_s) * GIB / (turns * batch_bytes)
