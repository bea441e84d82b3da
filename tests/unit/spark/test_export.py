"""What is wrong with an export is told before Spark is started."""

from __future__ import annotations

from importlib import metadata

import pytest

from offloaderd.core.errors import InvalidConfig, NotFound
from offloaderd.spark.export.export import check
from offloaderd.spark.export.iceberg import IcebergTable
from offloaderd.spark.scan import snapshot as source_snapshot
from offloaderd.testing.memory.metadata import MemoryTree

OPTIONS = {"topic": "orders", "objects.bucket": "tests"}


def test_a_wrong_topic_target_or_library_needs_no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by its own message; nothing is asked of a server for what the options alone say."""
    for options, target, said in (
        ({"mode": "maybe"}, "/archive", "mode = 'maybe'"),
        ({"start": "latest"}, "/archive", "not for an export"),
        ({}, "s3a://bucket/archive", "two exports could commit"),
    ):
        with pytest.raises(InvalidConfig, match=said):
            check({**OPTIONS, **options}, target)
    found = metadata.version
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", lambda name: "0.1" if name == "pyiceberg" else found(name))
        with pytest.raises(InvalidConfig, match=r"pyiceberg is 0\.1") as told:
            check(OPTIONS, IcebergTable(name="shop.orders", folder="/lake"))
    assert "offloaderd[iceberg]" in (told.value.hint or "")
    monkeypatch.setattr(source_snapshot, "metadata_store", lambda _: MemoryTree().connect())
    with pytest.raises(NotFound, match="no topic matches public/default/orders"):
        check(OPTIONS, "/archive")
