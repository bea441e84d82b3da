"""Tables that follow topics: how fast history becomes rows, beside Spark's own copy of the same rows in Parquet.

And how long a step of many small tables takes in one application.
"""

from __future__ import annotations

import io
import json
from itertools import cycle
from typing import TYPE_CHECKING

import fastavro

from bench.appending import everything_offloaded
from bench.load import MIB, WRITTEN_MS, append
from bench.report import Figure, spread
from bench.site import CLOCK
from bench.spark_child import spark
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import path_of
from offloaderd.daemon.settings import load
from offloaderd.daemon.stores import metadata_store
from offloaderd.format.pb.pulsar.messages_pb2 import MessageMetadata, SingleMessageMetadata
from offloaderd.tables import store as stored
from offloaderd.tables.declaration import Declaration, TableFormat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.scale import Scale
    from bench.site import Sections, Site

TOPIC = TopicName.parse("orders-in-a-table")
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": "string"},
        {"name": "price", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
PER_ENTRY, PER_CALL, DISTINCT = 100, 100, 50
"""Messages of an entry, entries of a call, and entries of different content."""
BYTES_OF_ROW = 60
"""Of a message in its entry, about."""
GOAL = 0.6
MANY, FEW_ROWS = 50, 10
"""Tables of one application, and messages of each."""


class Orders:
    """Entries of batches of orders, as producers send them."""

    def __init__(self, rows: int) -> None:
        self.count = rows // PER_ENTRY
        self.rows = self.count * PER_ENTRY
        self._distinct = [_entry(first, PER_ENTRY) for first in range(0, DISTINCT * PER_ENTRY, PER_ENTRY)]

    def batches(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the first entry id and the payloads of each call."""
        entries = cycle(self._distinct)
        for first in range(0, self.count, PER_CALL):
            yield first, [next(entries) for _ in range(min(PER_CALL, self.count - first))]


class FewOrders:
    """One entry with a small batch."""

    def batches(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield it."""
        yield 0, [_entry(0, FEW_ROWS)]


def order(number: int) -> dict[str, object]:
    """Return an order."""
    return {"id": number, "item": f"item {number % 977:05}", "price": number / 7, "at": WRITTEN_MS + number}


def encoded(one: dict[str, object]) -> bytes:
    """Return an order in Avro."""
    value = io.BytesIO()
    fastavro.schemaless_writer(value, ORDER, one)
    return value.getvalue()


def _entry(first: int, count: int) -> bytes:
    """Return an entry of a batch."""
    content = bytearray()
    for number in range(first, first + count):
        value = encoded(order(number))
        one = SingleMessageMetadata(payload_size=len(value), partition_key=f"{number}").SerializeToString()
        content += len(one).to_bytes(4, "big") + one + value
    metadata = MessageMetadata(
        producer_name="bench", sequence_id=first, publish_time=WRITTEN_MS + first, num_messages_in_batch=count
    ).SerializeToString()
    return len(metadata).to_bytes(4, "big") + metadata + content


async def tables(site: Site, size: Scale) -> list[Figure]:
    """Measure how fast the history of a topic becomes a table, in local[2]."""
    orders = Orders(size.backfill_bytes // BYTES_OF_ROW // 10)
    name, schema = f"tables{CLOCK.uuid().hex[:6]}", json.dumps(ORDER)
    sections: Sections = {"ledgers": {"kind": "embedded"}}
    rows = str(site.directory / f"rows-{name}")
    ours, copied = [], []
    async with site.bucket() as place, place.daemon(sections, name=name) as daemon:
        await append(daemon.client, TOPIC, orders)
        await daemon.client.enable(TOPIC, segment_bytes_max=16 * MIB)
        await everything_offloaded(daemon, TOPIC)
        environment = place.environment(name, 1, 2, sections)
        async with spark("local[2]", environment) as job:
            await job.ask(what="rows", topic=str(TOPIC), schema=schema, target=rows)
            for number in range(size.runs + 1):
                folder = site.directory / f"tables-{name}-{number}"
                await _declared(environment, f"run-{number}", path_of(TOPIC), str(folder))
                told = await job.ask(what="table", name=f"run-{number}", folder=str(folder), rows=orders.rows)
                ours.append(float(told["seconds"]))
                told = await job.ask(what="copy", source=rows, target=f"{folder}-copy", rows=orders.rows)
                copied.append(float(told["seconds"]))
    ours, copied = ours[1:], copied[1:]  # in the first round workers start
    return [
        Figure(
            benchmark="tables, local[2], batches of 100 messages in Avro",
            figure="rows to Delta Lake over Spark's copy of them in Parquet",
            values=[other / one for one, other in zip(ours, copied, strict=True)],
            goal=GOAL,
            notes={
                "ours": spread([orders.rows / one for one in ours], "rows/s"),
                "copy": spread([orders.rows / one for one in copied], "rows/s"),
            },
        )
    ]


async def tables_many(site: Site, size: Scale) -> list[Figure]:
    """Measure a step of all tables of one application with few rows each, and one without anything new."""
    name = f"tables{CLOCK.uuid().hex[:6]}"
    sections: Sections = {"ledgers": {"kind": "embedded"}}
    topics = [TopicName("public", "many", f"t{number}") for number in range(MANY)]
    written: list[float] = []
    idle: list[float] = []
    async with site.bucket() as place, place.daemon(sections, name=name) as daemon:
        for topic in topics:
            await append(daemon.client, topic, FewOrders())
            await daemon.client.enable(topic)
        for topic in topics:
            await everything_offloaded(daemon, topic)
        environment = place.environment(name, 1, 2, sections)
        async with spark("local[2]", environment) as job:
            for number in range(size.runs + 1):
                folder = str(site.directory / f"tables-{name}-{number}")
                await _declared(environment, f"run-{number}", "public/many/*", folder)
                for seconds in (written, idle):
                    told = await job.ask(what="table", name=f"run-{number}", folder=folder, rows=MANY * FEW_ROWS)
                    seconds.append(float(told["seconds"]))
    benchmark = f"tables, {MANY} of {FEW_ROWS} rows, local[2]"
    return [
        Figure(benchmark=benchmark, figure=figure, values=values[1:], unit="s")  # in the first round workers start
        for figure, values in (("a step of all", written), ("the same with nothing new", idle))
    ]


async def _declared(environment: Mapping[str, str], name: str, topics: str, folder: str) -> None:
    """Declare the tables of a round."""
    async with metadata_store(load(None, environment)) as metadata:
        declared = Declaration(name=name, topics=topics, to=folder, format=TableFormat.DELTA, schema=json.dumps(ORDER))
        await stored.create(metadata, declared)
