"""Options of the data source: what they mean, and every mistake at once."""

from __future__ import annotations

import pickle
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import LongType, StructType

from offloaderd.client import Trust
from offloaderd.core.errors import InvalidConfig
from offloaderd.core.model import Position
from offloaderd.spark.export import export
from offloaderd.spark.scan.columns import checked_schema, full_schema
from offloaderd.spark.scan.options import HELP, Mode, Start, parse
from offloaderd.spark.scan.read import ShareReader
from offloaderd.spark.scan.share import Daemon, Metadata, Task
from offloaderd.spark.source import PUSHING, FilteredReader, SegmentSource, SegmentsReader
from tests.unit.spark.lake import ENVIRONMENT

GIVEN = {"topic": "acme/shop/orders", "objects.bucket": "archive"}


def test_options_are_read() -> None:
    """Each option says what it says; names of settings go over the environment, and case does not matter."""
    found = parse(
        {
            **GIVEN,
            "Messages": "TRUE",
            "start": "3:4",
            "end": "5:0",
            "start_time": "2026-11-21T10:00:00Z",
            "end_time": "1795255200001",
            "mode": "skip",
            "metadata": "bucket",
            "partition_bytes": "2MiB",
            "objects.secret_key": "hidden",
            "objects.access_key": "k",
            "schema": '"long"',
            "encoding": "JSON",
        },
        environ=ENVIRONMENT,
    )
    assert (found.settings.objects.bucket, found.settings.objects.prefix) == ("archive", "p/")
    assert found.topic.text == "acme/shop/orders"
    assert (found.query.first, found.query.last) == (Position(3, 4), Position(5, 0))
    assert (found.query.since_ms, found.query.until_ms) == (1795255200000, 1795255200001)
    assert (found.messages, found.mode, found.metadata) == (True, Mode.SKIP, Metadata.BUCKET)
    assert found.columns["value"].dataType == LongType()
    assert found.partition_bytes == 2 * 1024 * 1024
    assert parse({"path": "orders", "start": "latest", "objects.bucket": "archive"}, environ={}).start is Start.LATEST
    assert "hidden" not in repr(found)


def test_each_option_has_the_spelling_that_spark_has_for_its_own() -> None:
    """`maxBytesPerTrigger` as well as `max_bytes_per_trigger`, in any case; what other sources call it is told."""
    offsets = '{"start": {}, "end": {}}'
    values = {"messages": "true", "start": "3:4", "end": "5:0", "start_time": "1", "end_time": "2", "mode": "skip"}
    values |= {"schema": '"long"', "encoding": "json", "transactions": "all", "metadata": "bucket", "offsets": offsets}
    values |= {"partition_bytes": "2MiB", "max_bytes_per_trigger": "3MiB", "without": "a/b/c", "topic": "orders"}
    skip = {**{name: text for name, text in values.items() if name != "mode"}, "skip": "damage"}
    live = {"topic": "orders", "live": "true", "address": "h:1", "tls": "true", "tls_ca": "/ca", "tls_cert": "/cert"}
    live |= {"tls_key": "/key", "token_file": "/token", "token": "hidden"}
    assert HELP.keys() == values.keys() | skip.keys() | live.keys() | {"path", "config"}
    for given in (values, skip, live):
        plain = parse(given, environ=ENVIRONMENT)
        for spelt in (camel, str.upper, lambda name: camel(name).lower()):
            assert parse({spelt(name): text for name, text in given.items()}, environ=ENVIRONMENT) == plain
    with pytest.raises(InvalidConfig, match=r"start_time: it is given in two spellings") as caught:
        parse({**GIVEN, "startTime": "1", "start_time": "2", "startingOffsets": "earliest"}, environ={})
    assert "startingoffsets: no such option; did you mean start?" in caught.value.message


def test_an_empty_list_of_conditions_names_none() -> None:
    """A program that fills in its options may give an empty `skip` beside `mode=skip`."""
    given = {**GIVEN, "mode": "skip"}
    for empty in ("", " , "):
        assert parse({**given, "skip": empty}, environ={}) == parse(given, environ={})
    with pytest.raises(InvalidConfig, match="mode, skip: mode=skip leaves out everything"):
        parse({**given, "skip": "losses"}, environ={})


def camel(name: str) -> str:
    """Return a name as Spark writes its own."""
    first, *others = name.split("_")
    return first + "".join(one.capitalize() for one in others)


def test_spark_finds_the_format_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `lookup_data_sources` of PySpark looks; where something is not installed, it finds nothing and fails not."""
    assert "pyspark_offload" in {one.name for one in iter_modules()}
    assert import_module("pyspark_offload").DefaultSource is SegmentSource
    for name in ("pyspark_offload", "offloaderd.spark.source"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    assert not hasattr(import_module("pyspark_offload"), "DefaultSource")


def test_filters_are_taken_where_spark_pushes_them_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that takes filters is refused by Spark where it pushes none down, which is its default."""
    source = SegmentSource(GIVEN)
    plain = source.reader(source.schema())
    assert plain.pushFilters.__func__ is DataSourceReader.pushFilters  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, PUSHING, sys)
    assert isinstance(source.reader(source.schema()), FilteredReader)
    assert find_spec(PUSHING) is not None, "of this release of PySpark"


def test_all_mistakes_at_once() -> None:
    """Unknown options, wrong values and wrong settings are told together; nothing secret is shown."""
    wrong = {
        "topik": "orders",
        "start": "5",
        "end_time": "yesterday",
        "mode": "lenient",
        "messages": "maybe",
        "partition_bytes": "0",
        "max_bytes_per_trigger": "a lot",
        "objects.bukket": "b",
        "objects.secret_key": "hidden",
        "offsets": "{}",
        "schema": "nowhere.avsc",
        "encoding": "xml",
    }
    with pytest.raises(InvalidConfig) as caught:
        parse(wrong, environ={})
    lines = caught.value.message.splitlines()
    for word in ("topik", "topic: a topic", "start = '5'", "end_time", "mode", "messages", "partition_bytes = 0"):
        assert any(line.strip().startswith(word) for line in lines), word
    assert any("did you mean objects.bucket?" in line for line in lines)
    assert any("max_bytes_per_trigger = 'a lot'" in line for line in lines)
    assert any("offsets" in line for line in lines)
    assert any("schema = 'nowhere.avsc': neither a schema in JSON nor a file" in line for line in lines)
    assert any("schema, encoding: only with messages=true" in line for line in lines)
    assert "hidden" not in caught.value.message
    with pytest.raises(InvalidConfig, match="encoding: of what"):
        parse({**GIVEN, "messages": "true", "encoding": "json"}, environ={})
    with pytest.raises(InvalidConfig, match="reversed"):
        parse({**GIVEN, "start": "5:0", "end": "4:0"}, environ={})
    for said in (
        '{"start": [], "end": {}}',
        '{"start": {"orders": 5}, "end": {}}',
        '{"start": {}, "end": {"orders": null}}',
    ):
        with pytest.raises(InvalidConfig, match="offsets = "):
            parse({**GIVEN, "offsets": said}, environ={})
    with pytest.raises(InvalidConfig, match="say it once"):
        parse({**GIVEN, "path": "returns"}, environ={})


LIVE = {**GIVEN, "live": "true", "address": "one:7650, [::1]:7650"}


def test_a_live_end_needs_a_daemon() -> None:
    """Its address, and credentials that go together; all other queries ask none."""
    found = parse({**LIVE, "tlsCa": "/ca.pem", "token_file": "/token"}, environ={}).live
    trust = Trust(ca_file=Path("/ca.pem"), token_file=Path("/token"))
    assert found == Daemon(("one:7650", "[::1]:7650"), trust)
    assert parse({**GIVEN, "live": "false"}, environ={}).live is None
    for given, told in (
        ({**GIVEN, "live": "true"}, "address: live=true needs it; with live=true: HOST:PORT"),
        ({**GIVEN, "address": "one:7650", "tls": "true"}, "address, tls: only with live=true"),
        ({**LIVE, "address": "one"}, "address = 'one': not an address: 'one'; allowed: with live=true: HOST:PORT"),
        ({**LIVE, "tls_cert": "/cert"}, "tls_cert: a certificate and its key go together"),
        ({**LIVE, "token": "hidden"}, "token: a token is sent over TLS only"),
        ({**LIVE, "offsets": '{"start": {}, "end": {}}'}, "live, offsets: a step of a stream has what is committed"),
    ):
        with pytest.raises(InvalidConfig) as caught:
            parse(given, environ={})
        assert told in caught.value.message
        assert "hidden" not in caught.value.message


def test_streams_and_exports_have_what_is_committed() -> None:
    """A live end is refused there, not passed over."""
    source = SegmentSource(LIVE)
    with pytest.raises(InvalidConfig, match="live=true: only for a query"):
        source.streamReader(source.schema())
    with pytest.raises(InvalidConfig, match="live: not for an export"):
        export.check(LIVE, "/archive")


def test_a_task_gets_the_daemon_and_shows_no_token() -> None:
    """It connects by itself, with the token of the options; a query that is not live gets no daemon."""
    source = SegmentSource({**LIVE, "tls": "true", "token": "hidden"})
    reader = source.reader(source.schema())
    packed = pickle.dumps(reader)
    assert b"hidden" in packed
    task = task_of(reader)
    assert pickle.loads(task.daemon).trust.bearer() == "hidden"  # noqa: S301 - our own bytes
    for one in (pickle.loads(packed), reader):  # noqa: S301 - our own bytes
        assert "hidden" not in repr(vars(one))
    plain = SegmentSource(GIVEN)
    assert task_of(plain.reader(plain.schema())).daemon == b""


def task_of(reader: DataSourceReader) -> Task:
    """Return what tasks of a reader get."""
    assert isinstance(reader, SegmentsReader)
    found = reader.__reduce__()[1][0]
    assert isinstance(found, Task)
    return found


def test_schema_may_be_less() -> None:
    """A query may name fewer columns; others, and those of other types, are told all at once."""
    whole = full_schema(messages=False, skips=False)
    fewer = StructType([whole["payload"], whole["ledger_id"]])
    assert checked_schema(fewer, whole) == fewer
    with pytest.raises(InvalidConfig) as caught:
        checked_schema(full_schema(messages=True, skips=True), whole)
    assert "value: no such column without messages=true" in caught.value.message
    assert "skipped: no such column" in caught.value.message


def test_tasks_get_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is pickled into tasks has the bucket with its keys and where the map is, and shows no secret."""
    monkeypatch.delenv("OFFLOADERD__OBJECTS__BUCKET", raising=False)
    keys = {"objects.access_key": "k", "objects.secret_key": "hidden", "metadata.servers": "zk.example:2181"}
    keys["ledgers.directory"] = "/run/own.key"
    source = SegmentSource({**GIVEN, **keys})
    reader = source.reader(source.schema())
    assert isinstance(reader, SegmentsReader)
    packed = pickle.dumps((reader, source.streamReader(source.schema())))
    assert b"zk.example" in packed, "a task asks what holds entries whose segment is gone"
    assert b"own.key" not in packed
    assert b"hidden" in packed, "a task cannot ask for the keys of the options"
    for one in pickle.loads(packed):  # noqa: S301 - our own bytes
        assert isinstance(one, ShareReader)
        assert "hidden" not in repr(vars(one))
