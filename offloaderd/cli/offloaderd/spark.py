"""`offloaderd spark`: jobs over stored segments, on this machine or on a Spark cluster."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from offloaderd.cli import show
from offloaderd.cli.jobs import MASTER
from offloaderd.cli.offloaderd.spark_tables import tables
from offloaderd.cli.offloaderd.verify import LEVELS
from offloaderd.cli.options import SIZE
from offloaderd.cli.program import OK
from offloaderd.cli.settings import CONFIG
from offloaderd.core.read_options import Transactions
from offloaderd.tables.layout import NO_VALUE

if TYPE_CHECKING:
    from offloaderd.spark.export.export import Round
    from offloaderd.spark.export.iceberg import IcebergTable

TABLE = "offload.topic"
JSON = click.option("--json", "as_json", is_flag=True, help="Answer in JSON, one object a line.")
METADATA = click.option(
    "--metadata",
    type=click.Choice(("zookeeper", "bucket")),
    default="zookeeper",
    show_default=True,
    help="Source of the list of committed segments. bucket: read all manifests, and no ZooKeeper.",
)


class ExportWish(TypedDict):
    """Options of an export."""

    form: str
    table: str | None
    catalog: str | None
    messages: bool
    transactions: str | None
    schema: str | None
    encoding: str | None
    skip: bool
    without: str | None
    round_size: int
    dry_run: bool
    metadata: str


@click.group()
def spark() -> None:
    """Run jobs over stored segments, on this machine or on a Spark cluster.

    \b
    Examples:
      offloaderd spark export orders /archive/orders --config offloaderd.toml
      offloaderd spark verify 'public/default/*' --config offloaderd.toml
      offloaderd spark tables run --config offloaderd.toml
    """


spark.add_command(tables)


@spark.command(short_help="Write a topic to Parquet files or an Iceberg table by day, each entry once.")
@CONFIG
@click.argument("topic")
@click.argument("target")
@click.option(
    "--format",
    "form",
    type=click.Choice(("parquet", "iceberg")),
    default="parquet",
    show_default=True,
    help="What TARGET is.",
)
@click.option("--table", metavar="NAME", help=f"With iceberg: the table in the folder. [default: {TABLE}]")
@click.option("--catalog", metavar="NAME", help="With iceberg: a catalogue of pyiceberg's, in which TARGET is a table.")
@click.option("--messages", is_flag=True, help="A row for each message instead of each entry.")
@click.option(
    "--transactions",
    type=click.Choice([kind.value for kind in Transactions]),
    help="With --messages: those that a consumer is given, or all, with what became of each. [default: committed]",
)
@click.option("--schema", metavar="FILE", help="With --messages: what values are, in Avro or as Pulsar says.")
@click.option(
    "--encoding", type=click.Choice(("avro", "json")), help="How values are written, if FILE does not say it."
)
@click.option("--without", metavar="TOPICS", help="Topics of a pattern to leave out: deleted, or made again.")
@click.option("--skip", is_flag=True, help="Skip what cannot be read, counted in a row of its own.")
@click.option("--round-size", type=SIZE, default="4GiB", show_default=True, help="What is committed at a time, about.")
@click.option("--dry-run", is_flag=True, help="Only show how much there is to export.")
@METADATA
@MASTER
@JSON
def export(
    *, config: Path | None, topic: str, target: str, master: str | None, as_json: bool, **wish: Unpack[ExportWish]
) -> int:
    """Write what is offloaded of TOPIC (a topic or a pattern) to TARGET, a folder that Spark can write to.

    With --format iceberg TARGET is a local folder with a catalogue of its own (SQLite) and tables, or, with --catalog,
    the name of a table in a catalogue that pyiceberg is set up for. Needs: pip install 'offloaderd[iceberg]'.

    Each entry is written exactly once: the position is committed with the data, so the same command again adds what is
    new since, or nothing. The next run completes or undoes what a crash has left.

    \b
    Examples:
      offloaderd spark export orders /archive/orders --config offloaderd.toml
      offloaderd spark export 'public/default/*' /archive/all --messages --config offloaderd.toml
      offloaderd spark export orders /archive/tables --format iceberg --config offloaderd.toml
      offloaderd spark export orders shop.orders --format iceberg --catalog lake --messages --schema orders.json
      offloaderd spark export orders hdfs://nn/archive/orders --master yarn --config offloaderd.toml
    """
    from offloaderd.daemon import log  # noqa: PLC0415 - --help need not wait for Spark
    from offloaderd.spark.session import check_libraries, spark_session  # noqa: PLC0415

    check_libraries()
    from offloaderd.spark.export.export import check, pending  # noqa: PLC0415
    from offloaderd.spark.export.export import export as run  # noqa: PLC0415

    log.configure("critical")
    options = {"topic": topic, "metadata": wish["metadata"], "messages": str(wish["messages"])}
    options["mode"] = "skip" if wish["skip"] else "fail"
    options |= {"config": str(config)} if config else {}
    options |= {
        name: value for name in ("transactions", "schema", "encoding", "without") if (value := wish[name]) is not None
    }
    place = _place(target, wish)
    check(options, place)
    with spark_session("offloaderd export", master=master, starting=show.note) as session:
        if wish["dry_run"]:
            size = pending(session, options, place)
            said = {"segment_bytes": size}
            click.echo(show.json_line(said) if as_json else f"{show.size(size)} of segments to export\n", nl=False)
            return OK
        rounds = run(session, options, place, round_bytes=wish["round_size"], progress=partial(_tell, as_json=as_json))
    rows = sum(one.rows for one in rounds)
    if as_json:
        click.echo(show.json_line({"summary": {"rounds": len(rounds), "rows": rows}}), nl=False)
    else:
        click.echo(f"exported {show.plural(rows, 'row')} in {show.plural(len(rounds), 'round')} to {place}")
    return OK


def _place(target: str, wish: ExportWish) -> str | IcebergTable:
    """Return the target of an export. Raises UsageError."""
    from offloaderd.spark.export.iceberg import IcebergTable  # noqa: PLC0415 - as above

    table, catalog = wish["table"], wish["catalog"]
    if wish["form"] != "iceberg":
        if table or catalog:
            raise click.UsageError("--table and --catalog belong to --format iceberg")
        return target
    if catalog is None:
        return IcebergTable(folder=target, name=table or TABLE)
    if table is not None:
        raise click.UsageError("with --catalog TARGET is the table: leave --table out")
    return IcebergTable(catalog=catalog, name=target)


def _tell(one: Round, *, as_json: bool) -> None:
    if as_json:
        line = {"round": one.number, "rows": one.rows, "segment_bytes": one.segment_bytes, "undated": one.undated}
        click.echo(show.json_line({**line, "positions": dict(one.positions)}), nl=False)
        return
    ends = ", ".join(f"{name} {at}" for name, at in one.positions.items())
    click.echo(f"round {one.number}: {show.plural(one.rows, 'row')}, up to {ends}")
    if one.undated:
        click.echo(f"  {show.plural(one.undated, 'row')} without a time: in day={NO_VALUE}, a null day in a table")


@spark.command(short_help="Verify all committed segments over many tasks.")
@CONFIG
@click.argument("topic")
@click.option("--level", type=click.Choice(LEVELS), default="full", show_default=True, help="As `offloaderd verify`.")
@click.option("--report", metavar="FOLDER", help="Also write the whole report there, as Parquet.")
@click.option("--dry-run", is_flag=True, help="Revoke no grant; only list the ledgers whose copy is damaged.")
@METADATA
@MASTER
@JSON
def verify(
    *,
    config: Path | None,
    topic: str,
    level: str,
    report: str | None,
    dry_run: bool,
    metadata: str,
    master: str | None,
    as_json: bool,
) -> int:
    """Look at every committed segment of TOPIC (a topic or a pattern): is it there, and is it what was written?

    The grants of ledgers whose copy is damaged are revoked, so that their source keeps them. Where that may not be
    written, each such ledger is named with the command to run.

    \b
    Exit codes:
      0    everything is sound
      1    problems were found
      2    wrong usage or configuration
      3    no problem was found, but not everything could be read

    \b
    Examples:
      offloaderd spark verify 're:.*' --config offloaderd.toml
      offloaderd spark verify orders --report /reports/today --config offloaderd.toml
    """
    from offloaderd.daemon import log  # noqa: PLC0415 - --help need not wait for Spark
    from offloaderd.spark.session import check_libraries, spark_session  # noqa: PLC0415

    check_libraries()
    from offloaderd.spark.scan.options import parse  # noqa: PLC0415
    from offloaderd.spark.scan.snapshot import check_topics  # noqa: PLC0415
    from offloaderd.spark.verify import verify as run  # noqa: PLC0415
    from offloaderd.upkeep.flaws import Level  # noqa: PLC0415

    log.configure("critical")
    options = {"topic": topic, "metadata": metadata} | ({"config": str(config)} if config else {})
    asyncio.run(check_topics(parse(options)))
    with spark_session("offloaderd verify", master=master, starting=show.note) as session:
        found = run(session, options, Level(level), dry_run=dry_run)
        if report is not None:
            found.report.write.parquet(report)
        flaws = [row.asDict() for row in found.report.where("kind IS NOT NULL").collect()]
    for flaw in flaws:
        if as_json:
            click.echo(show.json_line(flaw), nl=False)
            continue
        said = f"expected {flaw['expected']}, found {flaw['found']}" if flaw["expected"] else flaw["found"]
        kind = flaw["kind"].upper() if flaw["problem"] else flaw["kind"]
        click.echo(f"{kind:<12} {flaw['key']}: {said}")
        click.echo(f"{'':<12} -> {flaw['what_to_do']}")
    if as_json and found.ledgers:
        click.echo(show.json_line({"ledgers": [show.damaged_ledger_json(one) for one in found.ledgers]}), nl=False)
    elif found.ledgers:
        show.write_ledgers(found.ledgers)
    names = ("topics", "segments", "entries", "object_bytes", "read_bytes", "problems", "unreachable")
    if as_json:
        click.echo(show.json_line({"summary": {name: getattr(found, name) for name in names}}), nl=False)
    else:
        looked = f"{show.plural(found.segments, 'segment')} of {show.plural(found.topics, 'topic')}"
        verdict = show.plural(found.problems, "problem") if found.problems else "no problem"
        click.echo(f"inspected {looked}, {show.size(found.read_bytes)}; {verdict}")
    return found.exit_code
