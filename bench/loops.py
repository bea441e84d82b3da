"""The compiled loops (`native/`) beside those in Python, in turns: CPU seconds for a GiB of payloads.

Blocks, answers and entries are many more than a core's cache holds, and so are the payloads that are kept. Values in
Avro are orders of four fields, into arrays of Arrow.
"""

from __future__ import annotations

import os
import time
from collections import deque
from itertools import cycle, islice
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import google_crc32c
import pytest

from bench.load import MIB
from bench.report import Figure
from bench.tables import ORDER, encoded, order
from bench.usage import GIB
from offloaderd.bookkeeper.wire import v2
from offloaderd.bookkeeper.wire.entry import ENTRY_HEADER, DigestType, EntryChecker
from offloaderd.core import native
from offloaderd.core.entries import decode_entries, frame
from offloaderd.core.model import Position
from offloaderd.format.pb.pulsar.messages_pb2 import MessageMetadata, SingleMessageMetadata
from offloaderd.format.pulsar.messages import PlainBatch, decode_columns
from tests.loops import in_python

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.scale import Scale
    from bench.site import Site

T = TypeVar("T")

DISTINCT = 16
KEPT = 8
VALUES = 10_000
"""Of a batch in Avro."""
LEDGER = 7


class Work(NamedTuple):
    """Batches of 1 MiB of payloads of one size: blocks of entries, answers of a bookie, and entries of messages."""

    entries: int
    blocks: list[bytes]
    answers: list[bytes]
    messages: list[bytes]

    @classmethod
    def of(cls, entry_bytes: int) -> Work:
        """Make batches that differ."""
        count = max(1, MIB // entry_bytes)
        payloads = [[os.urandom(entry_bytes) for _ in range(count)] for _ in range(DISTINCT)]
        return cls(
            count,
            [b"".join(frame(0, one)) for one in payloads],
            [_answer(one) for one in payloads],
            [_entry(one) for one in payloads],
        )


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


def _entry(payloads: list[bytes]) -> bytes:
    """Return an entry with a batch of messages, each with a key."""
    one = MessageMetadata(producer_name="bench", sequence_id=0, publish_time=1, num_messages_in_batch=len(payloads))
    metadata = one.SerializeToString()
    content = [len(metadata).to_bytes(4, "big"), metadata]
    for number, payload in enumerate(payloads):
        head = SingleMessageMetadata(payload_size=len(payload), partition_key=f"{number}").SerializeToString()
        content += (len(head).to_bytes(4, "big"), head, payload)
    return b"".join(content)


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

        def values_of(payload: bytes) -> list[bytes | None]:
            found = decode_columns(Position(LEDGER, 0), payload, batch_max=MIB)
            assert isinstance(found, PlainBatch)  # noqa: S101 - it is one
            return found.values

        for what, call, batches in (
            ("blocks", payloads_of, work.blocks),
            ("answers of bookies", checked, work.answers),
            ("batches of messages", values_of, work.messages),
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
    return [*figures, _avro(size)]


def _avro(size: Scale) -> Figure:
    """Measure values in Avro."""
    from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415 - of one benchmark

    from offloaderd.spark.value_schema import Encoding, ValueSchema  # noqa: PLC0415
    from offloaderd.spark.value_types import kind_of  # noqa: PLC0415
    from offloaderd.spark.values import SameVersion, ValueDecoder  # noqa: PLC0415

    values = [encoded(order(number)) for number in range(DISTINCT * VALUES)]
    batches = [values[first : first + VALUES] for first in range(0, len(values), VALUES)]
    decoder = ValueDecoder(ValueSchema(encoding=Encoding.AVRO, newest=ORDER, versions={}))
    kind = to_arrow_type(kind_of(ORDER).spark, timezone="UTC")
    batch_bytes = sum(map(len, values)) // DISTINCT
    rounds = [
        _both(lambda one: decoder.array([SameVersion(one)], kind), batches, batch_bytes, size.segment_bytes // 8)
        for _ in range(size.runs)
    ]

    def each(which: int) -> str:
        return f"{median(one[which] for one in rounds) * batch_bytes / GIB / VALUES * 1e6:.2f} µs"

    return Figure(
        benchmark="compiled loops, values in Avro",
        figure="CPU of reading them into Arrow, over that of Python",
        values=[one[0] / one[1] for one in rounds],
        more_is_better=False,
        notes={"compiled": each(0), "Python": each(1)},
    )


def _both(call: Callable[[T], object], batches: Sequence[T], batch_bytes: int, total_bytes: int) -> tuple[float, float]:
    """Return the CPU seconds for a GiB with the compiled loops and with those in Python."""
    if not native.IN_USE:
        raise RuntimeError("offloaderd-native is not installed: it needs a C compiler (make setup)")
    compiled = _seconds(call, batches, batch_bytes, total_bytes)
    with pytest.MonkeyPatch.context() as patch:
        in_python(patch)
        return compiled, _seconds(call, batches, batch_bytes, total_bytes)


def _seconds(call: Callable[[T], object], batches: Sequence[T], batch_bytes: int, total_bytes: int) -> float:
    kept: deque[object] = deque(maxlen=KEPT)
    turns = max(DISTINCT, total_bytes // batch_bytes)
    begun_s = time.process_time()
    for batch in islice(cycle(batches), turns):
        kept.append(call(batch))
    return (time.process_time() - begun_s) * GIB / (turns * batch_bytes)
