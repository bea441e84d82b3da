"""Which files of a table of Iceberg in a bucket nothing names: listed and compared there as in a folder."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from offloaderd.core.clock import SystemClock
from offloaderd.spark.export.expiry import unnamed
from tests.unit.spark.iceberg_lake import library_threads

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import S3Server


def test_orphans_in_a_bucket(tmp_path: Path, s3_server: S3Server, s3_bucket: str) -> None:
    """Also where the table names its files by another scheme of the same store."""
    settings = {
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{s3_bucket}/lake",
        "s3.endpoint": s3_server.endpoint,
        "s3.access-key-id": s3_server.access_key,
        "s3.secret-access-key": s3_server.secret_key,
        "s3.region": "us-east-1",
    }
    rows = pa.table({"id": [1, 2]})
    with library_threads(), closing(SqlCatalog("lake", **settings)) as catalog:
        catalog.create_namespace("shop")
        table = catalog.create_table("shop.orders", schema=rows.schema)
        table.append(rows)
        table.append(rows)
        (first, _) = [one.file.file_path for one in table.scan().plan_files()]
        again = f"{table.location()}/data/again.parquet"
        orphans = ["data/day=1/a b%20c.parquet", "metadata/cafe-m0.avro"]
        content = table.io.new_input(first).open().read()
        for url in (again, *(f"{table.location()}/{name}" for name in orphans)):
            with table.io.new_output(url).create() as file:
                file.write(content)
        table.add_files([again.replace("s3://", "s3a://")])

        def found(older_ms: float) -> list[str]:
            return sorted(unnamed(table, set(), lambda: catalog.load_table("shop.orders"), older_ms))

        now_ms = SystemClock().wall_ms()
        assert found(now_ms + 86_400_000) == orphans
        assert found(now_ms - 86_400_000) == []
