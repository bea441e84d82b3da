"""The data source in a real Spark, on a real S3 server and ZooKeeper: SQL, push-down by requests, streams, hashes."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64encode
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException

from offloaderd.cli.offloaderd.__main__ import cli
from offloaderd.client import Trust
from offloaderd.core.errors import Conflict, InvalidConfig, OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.drill.s3_proxy import S3Proxy
from offloaderd.spark.export.commit import Commit
from offloaderd.spark.export.export import OPEN_FILES, WRITERS, export, own_session, pending
from offloaderd.spark.export.folder import ExportFolder
from offloaderd.spark.export.iceberg import COMMIT
from offloaderd.spark.verify import verify
from tests.authority import Authority, token
from tests.integration import processes
from tests.integration.appending import append_to
from tests.integration.spark.site import in_thread
from tests.patience import PATIENCE_S
from tests.unit.format.test_pulsar_message import entry
from tests.unit.read.build import PREFIX, Piece
from tests.unit.spark.iceberg_lake import Lake, library_threads
from tests.unit.spark.lake import BASE_MS, timed
from tests.unit.spark.test_source_messages import cut
from tests.unit.spark.test_value_schema import record, written

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.integration.spark.site import Site
    from tests.servers import S3Server

TOPIC = TopicName("public", "default", "orders")
ROWS = 2000
SECRET = b"secret-of-the-tokens-0123456789-abcdef"


def held(ledger_id: int, first: int, count: int) -> list[bytes]:
    """Return entries a second apart, of 500 bytes."""
    return [timed(ledger_id, entry, BASE_MS + 1000 * entry, 500) for entry in range(first, first + count)]


def table(spark: SparkSession, site: Site, **more: str) -> DataFrame:
    """Return the topic as a table."""
    return spark.read.format("offload").options(**site.options(**more)).load("orders")


def counted(site: Site) -> AbstractContextManager[S3Proxy]:
    """Have a proxy before the S3 server that counts requests."""
    return in_thread(S3Proxy(site.objects["endpoint"], prefix=PREFIX))


@pytest.mark.witness("spark")
def test_sql_and_hash(spark: SparkSession, site: Site) -> None:
    """SQL counts, sums and filters a topic of two segments; the bytes are those that the daemon reads."""
    asyncio.run(site.commit(TOPIC, [Piece(3, 0, held(3, 0, ROWS), ROWS)]))
    asyncio.run(site.commit(TOPIC, [Piece(4, 0, held(4, 0, 300))]))
    found = table(spark, site, partition_bytes="200KiB")
    found.createOrReplaceTempView("orders")
    sums = spark.sql("SELECT ledger_id, count(*) AS n, max(index) AS last FROM orders GROUP BY 1 ORDER BY 1").collect()
    assert [tuple(row) for row in sums] == [(3, ROWS, ROWS - 1), (4, 300, 299)]
    rows = found.select("ledger_id", "entry_id", "payload", "topic").collect()
    digest = sha256()
    for row in sorted(rows):
        digest.update(row.payload)
    assert digest.hexdigest() == asyncio.run(site.hash_of_reads(TOPIC))
    assert {row.topic for row in rows} == {str(TOPIC)}
    plan = found._jdf.queryExecution().toString()
    assert "offload" in plan
    assert site.objects["secret_key"] not in plan
    assert site.objects["access_key"] not in plan


@pytest.mark.witness("spark")
@pytest.mark.parametrize("site", ["azure", "gcs"], indirect=True)
def test_other_kinds_of_stores(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    """A query, an export and a verification of a topic in Azure or Google Cloud Storage; damage is found there too."""
    asyncio.run(site.commit(TOPIC, [Piece(3, 0, held(3, 0, ROWS), ROWS)]))
    last = asyncio.run(site.commit(TOPIC, [Piece(4, 0, held(4, 0, 300))]))
    digest = sha256()
    for row in sorted(
        table(spark, site, partition_bytes="200KiB").select("ledger_id", "entry_id", "payload").collect()
    ):
        digest.update(row.payload)
    assert digest.hexdigest() == asyncio.run(site.hash_of_reads(TOPIC))
    options = site.options(topic="orders")
    target = str(tmp_path / "archive")
    assert sum(one.rows for one in export(spark, options, target)) == ROWS + 300
    assert spark.read.parquet(target).where("day IS NOT NULL").count() == ROWS + 300
    before = verify(spark, options)
    assert (before.exit_code, before.segments, before.entries) == (0, 2, ROWS + 300)
    asyncio.run(site.spoil(last))
    after = verify(spark, options)
    assert (after.exit_code, after.problems, after.unreachable) == (1, 1, 0)


def test_pushed_filters_by_requests(spark: SparkSession, site: Site) -> None:
    """What a WHERE leaves out is not fetched: segments not at all, and of those that are left no other blocks."""
    for ledger_id in range(1, 5):
        asyncio.run(site.commit(TOPIC, [Piece(ledger_id, 0, held(ledger_id, 0, 400), 400)]))
    with counted(site) as proxy:
        found = table(spark, site, **{"objects.endpoint": proxy.endpoint})
        requests = proxy.counts.requests
        assert found.where("ledger_id = 2").count() == 400
        assert (requests["get manifest"], requests["get index"]) == (1, 1)
        of_one = requests["get data"]
        assert of_one >= 1
        requests.clear()
        moment = datetime.fromtimestamp(BASE_MS / 1000 + 330, UTC).strftime("%Y-%m-%d %H:%M:%S")
        late = found.where(f"broker_timestamp >= TIMESTAMP '{moment}' AND ledger_id IN (1, 3)")
        assert late.count() == 2 * 70
        assert requests["get data"] == 2, "one block of each of two segments"
        requests.clear()
        assert found.where("ledger_id > 77").count() == 0
        assert not requests
        unregistered = table(spark.newSession(), site, **{"objects.endpoint": proxy.endpoint})
        assert unregistered.where("ledger_id = 2").count() == 400
        assert requests["get index"] == 4, "found by itself; Spark pushes nothing down unless it is told to"


def test_mistakes_and_damage(
    spark: SparkSession, site: Site, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """All wrong options are told at once; a damaged segment ends the query by its name, or is counted."""
    with pytest.raises(PySparkException) as caught:
        table(spark, site, start="x", mode="maybe", mesages="true", **{"objects.bukket": "b"}).count()
    for word in ("start = 'x'", "mode = 'maybe'", "did you mean messages?", "did you mean objects.bucket?"):
        assert word in str(caught.value)
    assert str(caught.value).count("  File ") == 1
    with pytest.raises(PySparkException, match="no topic matches"):
        table(spark, site).count()
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, held(1, 0, 300), 300)]))
    damaged = asyncio.run(site.commit(TOPIC, [Piece(2, 0, held(2, 0, 300), 300)]))
    asyncio.run(site.spoil(damaged))
    with pytest.raises(PySparkException, match=str(damaged)) as caught:
        table(spark, site).count()
    assert str(caught.value).count("  File ") == 1
    with pytest.raises(OffloaderError) as failed:
        export(spark, site.options(topic="orders"), str(tmp_path / "archive"))
    assert re.match(r"round 1 failed, and nothing of it was added: \[OFFLOAD_DAMAGE\] segment ", failed.value.message)
    assert "\n" not in failed.value.message
    assert not capfd.readouterr().err, "Spark's executors write no pages of it either"
    sums = table(spark, site, mode="skip").selectExpr("count(payload)", "sum(skipped)", "max(reason)").collect()[0]
    assert tuple(sums)[:2] == (500, 100)
    assert str(damaged) in sums[2]


@pytest.fixture
def daemon_site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> processes.Site:
    """A site whose daemon takes callers with tokens, over TLS: alice does everything, bob reads."""
    found = processes.Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    files = Authority(tmp_path).server()
    found.settings["tls"] = {"cert_file": files.cert, "key_file": files.key}
    found.settings["access"] = {
        "grants": "admin alice *; read bob public/default/*",
        "token_secret_key": b64encode(SECRET).decode(),
    }
    return found


def options_of(site: processes.Site, **more: str) -> dict[str, str]:
    """Return the options of a query of a daemon's site; those that are empty are left out."""
    keys = {"endpoint": site.endpoint, "access_key": site.access_key, "secret_key": site.secret_key}
    found = {f"objects.{name}": value for name, value in {**keys, "bucket": site.bucket}.items()}
    found |= {"metadata.servers": site.zookeeper, "daemon.cluster": site.cluster, "partition_bytes": "8KiB"}
    return found | {name: value for name, value in more.items() if value}


async def entries_of(found: DataFrame) -> list[tuple[int, int, bytes]]:
    """Return ledger, entry and payload of all rows, in order."""
    rows = await asyncio.to_thread(found.select("ledger_id", "entry_id", "payload").collect)
    return sorted((row.ledger_id, row.entry_id, bytes(row.payload)) for row in rows)


@pytest.mark.witness("spark")
async def test_live_end(spark: SparkSession, daemon_site: processes.Site, tmp_path: Path) -> None:
    """Committed segments and what a daemon has behind them, each entry once, also if it is committed in between."""
    held = [entry(b"%d" % number) for number in range(2000)]
    held[999], held[1000], held[1800] = cut("a", bytes(range(256)), 3)
    ca, bob = tmp_path / "ca.pem", token(SECRET, "bob")
    (tmp_path / "token").write_text(bob)
    trust = Trust(ca_file=ca, token=token(SECRET, "alice"))
    async with processes.DaemonProcess(daemon_site) as daemon, daemon.client(trust) as client:

        def table(topics: str = "orders", **more: str) -> DataFrame:
            live = {"live": "true", "address": daemon.address, "tls_ca": str(ca), "token": bob, **more}
            return spark.read.format("offload").options(**options_of(daemon_site, **live)).load(topics)

        def committed() -> DataFrame:
            return spark.read.format("offload").options(**options_of(daemon_site)).load("orders")

        async def commit() -> None:
            async for _ in client.offload(TOPIC, wait=True, timeout_s=PATIENCE_S):
                pass

        async def read(count: int) -> list[tuple[int, int, bytes]]:
            batches = [answer.batch async for answer in client.read(TOPIC)]
            found = [(one.ledger_id, *pair) for one in batches for pair in enumerate(one.payloads, one.first_entry_id)]
            assert [data for *_, data in found] == held[:count]
            return found

        await client.enable(TOPIC)
        await append_to(client, TOPIC, held[:1000])
        await commit()
        await append_to(client, TOPIC, held[1000:1900])
        every = await read(1900)
        assert len({one[0] for one in every[1000:]}) > 1, "the live end is in several ledgers"
        assert await entries_of(committed()) == every[:1000]
        found = table()
        assert await entries_of(found) == every
        plan = found._jdf.queryExecution().toString()
        assert "offload" in plan
        assert bob not in plan
        within = found.where("ledger_id = 1 AND entry_id >= 650")
        assert await entries_of(within) == [one for one in every if one[0] == 1 and one[1] >= 650]
        messages = table(messages="true", token="", token_file=str(tmp_path / "token")).where("state = 'plain'")
        values = await asyncio.to_thread(messages.select("value").collect)
        plain = [b"%d" % number for number in range(1900) if number not in {999, 1000, 1800}]
        assert sorted(bytes(row.value) for row in values) == sorted([*plain, bytes(range(256))])

        planned = table().select("ledger_id", "entry_id", "payload").rdd
        assert await asyncio.to_thread(planned.getNumPartitions) > 5
        await commit()
        await append_to(client, TOPIC, held[1900:])
        assert await entries_of(committed()) == every, "all that was live at the planning is in segments"
        rows = await asyncio.to_thread(planned.collect)
        assert sorted((row.ledger_id, row.entry_id, bytes(row.payload)) for row in rows) == every
        assert len(await read(2000)) == 2000
        await client.enable("returns")
        await append_to(client, TopicName.parse("returns"), held[:50])
        both = table("public/default/*").groupBy("topic").count()
        counts = {row.topic: row["count"] for row in await asyncio.to_thread(both.collect)}
        assert counts == {str(TOPIC): 2000, "persistent://public/default/returns": 50}

        with pytest.raises(PySparkException, match=r"cannot connect to the daemon at 127\.0\.0\.1:1") as caught:
            await entries_of(table(address="127.0.0.1:1"))
        assert bob not in str(caught.value) + daemon.said()


def test_stream_restarts_from_its_checkpoint(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    """A stream that is stopped and started again has each entry once, in steps of a limited size, up to its end."""
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, held(1, 0, 150))]))
    asyncio.run(site.commit(TOPIC, [Piece(1, 150, held(1, 150, 150), 300)]))

    def run(**more: str) -> list[int]:
        options = site.options(max_bytes_per_trigger="50KiB", **more)
        stream = spark.readStream.format("offload").options(**options).load("orders")
        writer = stream.select("ledger_id", "entry_id").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query = writer.start(str(tmp_path / "out"))
        assert query.awaitTermination(100)
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    assert sum(run(end="1:220")) == 221, "no further, although there is more"
    assert sum(run()) == 79
    asyncio.run(site.commit(TOPIC, [Piece(5, 0, held(5, 0, 170))]))
    steps = run()
    assert sum(steps) == 170
    assert max(steps) < 110, "a step may end inside a segment"
    assert run() == []
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(map(tuple, rows)) == [(1, entry) for entry in range(300)] + [(5, entry) for entry in range(170)]
    with pytest.raises(PySparkException, match="only for a stream"):
        table(spark, site, start="latest").count()


def test_export_goes_on_where_it_ended(
    spark: SparkSession, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of an export add what is new, by day; one that is repeated adds nothing, and crashes leave nothing."""
    target = str(tmp_path / "archive")
    options = site.options(topic="orders")
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, held(1, 0, 150))]))
    asyncio.run(site.commit(TOPIC, [Piece(1, 150, [*held(1, 150, 149), b"no time"], 300)]))
    assert [one.rows for one in export(spark, {**options, "end": "1:9"}, target)] == [10]
    rounds = export(spark, options, target, round_bytes=100_000)
    assert len(rounds) > 1
    assert sum(one.rows for one in rounds) == 290
    assert rounds[-1].positions == {str(TOPIC): "1:299"}
    assert export(spark, options, target) == []
    for more in ({"messages": "true"}, {"start": "1:5"}, {"end_time": "2030-01-01T00:00:00"}):
        with pytest.raises(InvalidConfig, match="export of something else"):
            export(spark, {**options, **more}, target)
    for more in ({"offsets": '{"start": {}, "end": {}}'}, {"start": "latest"}, {"max_bytes_per_trigger": "1KiB"}):
        with pytest.raises(InvalidConfig, match="not for an export"):
            export(spark, {**options, **more}, target)
    asyncio.run(site.commit(TOPIC, [Piece(5, 0, held(5, 0, 70))]))
    with monkeypatch.context() as patch:
        patch.setattr(ExportFolder, "_finish", lambda _, made: 1 / 0 if made.positions[str(TOPIC)] == "5:69" else None)
        with pytest.raises(ZeroDivisionError):
            export(spark, options, target)
    assert found_in(spark, target) == 300, "committed, and not moved to where it is seen"
    assert export(spark, options, target) == []
    rows = spark.read.parquet(target).where("day IS NOT NULL").select("ledger_id", "entry_id", "day").collect()
    assert sorted((row.ledger_id, row.entry_id) for row in rows) == [
        *((1, entry) for entry in range(299)),
        *((5, entry) for entry in range(70)),
    ]
    assert {str(row.day) for row in rows} == {"2025-10-09"}
    assert found_in(spark, target) == 370
    assert not list((tmp_path / "archive" / "_offloaderd" / "staging").iterdir())
    with pytest.raises(Conflict, match="another export has committed"):
        ExportFolder(spark, target).commit(Commit(number=2, source={}, positions={}), f"{target}/staging", {}, 0)
    with pytest.raises(InvalidConfig, match=r"two exports could commit|cannot export to s3a"):
        export(spark, options, "s3a://bucket/archive")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A folder for tables of Iceberg."""
    with library_threads():
        yield Lake(tmp_path / "lake")


def test_table_goes_on_where_it_ended(spark: SparkSession, site: Site, lake: Lake, tmp_path: Path) -> None:
    """Each round is a snapshot with its positions; by day; the columns are those of Parquet; again is a no-op."""
    options = site.options(topic="orders")
    for first in (0, 50):
        asyncio.run(site.commit(TOPIC, [Piece(1, first, held(1, first, 50))]))
    asyncio.run(site.commit(TOPIC, [Piece(1, 100, [*held(1, 100, 149), b"no time"], 250)]))
    asyncio.run(site.retire(TOPIC))
    assert pending(spark, options, lake.where) > 200 * 500
    assert not lake.folder.exists()
    rounds = export(spark, options, lake.where, round_bytes=60_000)
    assert sum(one.rows for one in rounds) == 200, "from where retention has left off"
    assert len(rounds) > 1
    assert rounds[-1].positions == {str(TOPIC): "1:249"}
    assert export(spark, options, lake.where) == []
    with lake.table() as table:
        summaries = [json.loads(one.summary.additional_properties[COMMIT]) for one in table.snapshots() if one.summary]
        days = table.inspect.partitions().to_pylist()
        rows = table.scan().to_arrow().to_pylist()
    assert [one["moved"][str(TOPIC)][1].partition("@")[0] for one in summaries] == [
        one.positions[str(TOPIC)] for one in rounds
    ]
    assert {str(one["partition"]["day"]): one["record_count"] for one in days} == {"2025-10-09": 199, "None": 1}
    assert sorted((row["ledger_id"], row["entry_id"]) for row in rows) == [(1, entry_id) for entry_id in range(50, 250)]
    export(spark, options, str(tmp_path / "parquet"))
    parquet = spark.read.parquet(str(tmp_path / "parquet")).drop("round", "day").toArrow()
    assert sorted(parquet.to_pylist(), key=str) == sorted(rows, key=str)


@pytest.mark.usefixtures("spark")
def test_messages_with_a_schema_by_command(site: Site, lake: Lake, tmp_path: Path) -> None:
    """`offloaderd spark export --format iceberg` writes values as structs; wrong usage is told."""
    order = record(("id", "int"), ("item", "string"))
    (tmp_path / "order.avsc").write_text(json.dumps(order))
    values = [entry(written(order, {"id": number, "item": "x"})) for number in range(20)]
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, values, 20)]))
    config = tmp_path / "offloaderd.toml"
    config.write_text("".join(f'{name} = "{value}"\n' for name, value in site.options().items()))

    def run(*words: str) -> Any:  # noqa: ANN401 - click's result
        arguments = ["spark", "export", "orders", str(lake.folder), "--config", str(config), *words]
        return CliRunner().invoke(cli, arguments, standalone_mode=False)

    wanted = ("--format", "iceberg", "--messages", "--schema", str(tmp_path / "order.avsc"))
    answer = run(*wanted)
    assert answer.exception is None, answer.exception
    assert f"exported 20 rows in 1 round to table offload.topic in {lake.folder}" in answer.stdout
    with lake.table("offload.topic") as table:
        found = table.scan(row_filter="value.id > 17").to_arrow().to_pylist()
    assert [row["value"] for row in found] == [{"id": 18, "item": "x"}, {"id": 19, "item": "x"}]
    assert "exported 0 rows" in run(*wanted).stdout
    wider = record(("id", "int"), ("item", "string"), ("note", ["null", "string"]))
    (tmp_path / "order.avsc").write_text(json.dumps(wider))
    values = [entry(written(wider, {"id": number, "item": "x", "note": "new"})) for number in range(20, 23)]
    asyncio.run(site.commit(TOPIC, [Piece(2, 0, values, 3)]))
    answer = run(*wanted)
    assert answer.exception is None, answer.exception
    with lake.table("offload.topic") as table:
        found = table.scan(row_filter="value.id > 18").to_arrow().to_pylist()
    assert sorted(str(row["value"]["note"]) for row in found) == ["None", "new", "new", "new"]
    assert "belong to --format iceberg" in str(run("--table", "a.b").exception)
    assert "leave --table out" in str(run("--format", "iceberg", "--table", "a.b", "--catalog", "c").exception)
    assert "names no table" in str(run("--format", "iceberg", "--table", "orders").exception)


@pytest.mark.witness("spark")
def test_commands(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    """`offloaderd spark` exports and verifies by the daemon's settings; in JSON, and with exit codes."""
    asyncio.run(site.commit(TOPIC, [Piece(1, 0, held(1, 0, 200), 200)]))
    config = tmp_path / "offloaderd.toml"
    config.write_text("".join(f'{name} = "{value}"\n' for name, value in site.options().items()))
    target = str(tmp_path / "archive")

    def run(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        answer = CliRunner().invoke(
            cli, ["spark", *arguments, "--json", "--config", str(config)], standalone_mode=False
        )
        assert answer.exception is None, answer.exception
        return answer.return_value, [json.loads(line) for line in answer.stdout.splitlines()]

    code, (dry,) = run("export", "orders", target, "--dry-run")
    assert code == 0
    assert dry["segment_bytes"] > 200 * 500
    assert not (tmp_path / "archive").exists()
    code, (first, summary) = run("export", "orders", target)
    assert (code, first["rows"], summary) == (0, 200, {"summary": {"rounds": 1, "rows": 200}})
    assert run("export", "orders", target) == (0, [{"summary": {"rounds": 0, "rows": 0}}])
    assert found_in(spark, target) == 200
    code, lines = run("verify", "orders", "--report", str(tmp_path / "report"))
    assert (code, lines[-1]["summary"]["entries"], lines[-1]["summary"]["problems"]) == (0, 200, 0)
    assert spark.read.parquet(str(tmp_path / "report")).count() == len(lines)


def found_in(spark: SparkSession, target: str) -> int:
    """Return how many rows a reader of Parquet sees."""
    return spark.read.parquet(target).count()


def test_verify_as_a_job(spark: SparkSession, site: Site) -> None:
    """Every segment is looked at by some task; the report has a row for each flaw and each sound segment."""
    sound = asyncio.run(site.commit(TOPIC, [Piece(1, 0, held(1, 0, 300), 300)]))
    spoilt = asyncio.run(site.commit(TOPIC, [Piece(2, 0, held(2, 0, 300), 300)]))
    options = site.options(topic="orders")
    before = verify(spark, options)
    assert (before.exit_code, before.segments, before.entries) == (0, 2, 600)
    asyncio.run(site.spoil(spoilt))
    after = verify(spark, options)
    assert (after.exit_code, after.problems, after.unreachable) == (1, 1, 0)
    assert [(one.ledger_id, one.fate.value) for one in after.ledgers] == [(2, "kept")]
    assert after.read_bytes > before.object_bytes
    rows = after.report.collect()
    assert [row.kind for row in rows if row.segment_id == str(sound)] == [None]
    (block,) = [row for row in rows if row.problem]
    assert (block.segment_id, block.kind, block.entries) == (str(spoilt), "block", "2:100 to 2:199")


def test_sessions_of_tables(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that write files of two partitions side by side, unless rows have an order or the user says how many."""
    plain = spark.newSession()
    assert own_session(plain).conf.get(WRITERS) == f"{OPEN_FILES}"
    assert own_session(plain, ordered=True).conf.get(WRITERS) == "0"
    assert own_session(own_session(plain), ordered=True).conf.get(WRITERS) == "0"
    given = SparkConf(loadDefaults=False).set(WRITERS, "0")
    monkeypatch.setattr(SparkContext, "getConf", lambda _: given)
    assert own_session(plain).conf.get(WRITERS) == "0"
