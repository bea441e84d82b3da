"""Declared tables of one topic, and the application that writes them, for tests with a real Spark."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from offloaderd.core.model import TopicName
from offloaderd.spark.tables.application import Application
from offloaderd.tables import store as stored
from offloaderd.tables.declaration import Declaration
from tests.integration.spark.site import CLOCK
from tests.unit.format.test_pulsar_message import entry
from tests.unit.spark.test_value_schema import record, written

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.integration.spark.site import Site

TOPIC = TopicName("public", "default", "orders")
ORDER = record(("id", "int"), ("item", "string"))


def declare(site: Site, **given: Any) -> None:  # noqa: ANN401 - fields of a declaration
    """Declare a table of the topic."""

    async def create() -> None:
        async with site.stores() as (metadata, _):
            await stored.create(metadata, Declaration(**{"name": "orders", "topics": "public/default/orders", **given}))

    asyncio.run(create())


def drop(site: Site) -> None:
    """Drop the declaration."""

    async def dropped() -> None:
        async with site.stores() as (metadata, _):
            await stored.drop(metadata, "orders")

    asyncio.run(dropped())


def run(
    spark: SparkSession, site: Site, tell: Callable[[stored.TableState], None] = lambda _: None
) -> tuple[bool, list[stored.TableState]]:
    """Run the application until all tables are up to date; return what it said last of each."""
    said: dict[str, stored.TableState] = {}

    def told(_: str, state: stored.TableState) -> None:
        said[state.table] = state
        tell(state)

    application = Application(
        spark,
        site.options(),
        clock=CLOCK,
        registry=CollectorRegistry(),
        tell=told,
    )
    return application.run(once=True), list(said.values())


def order(schema: Any, value: dict[str, Any], **fields: Any) -> bytes:  # noqa: ANN401 - as Avro and protobuf have it
    """Return the entry of an order."""
    return entry(written(schema, value), **fields)
