"""`offloadctl tables`: declare tables that follow topics, and see where they stand."""

from __future__ import annotations

import getpass
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import click

from offloaderd.cli import options, show
from offloaderd.cli.jobs import settings_of
from offloaderd.cli.options import DURATION, SIZE, Session
from offloaderd.cli.program import FAILED, OK
from offloaderd.cli.settings import CONFIG
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import CorruptData
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.core.units import age, size
from offloaderd.daemon.stores import metadata_store
from offloaderd.tables import store as stored
from offloaderd.tables.declaration import Declaration, History, OnError, TableFormat, TableMode
from offloaderd.tables.layout import Partition, parse_partition
from offloaderd.tables.store import States, TableState

if TYPE_CHECKING:
    from offloaderd.metadata.port import MetadataStore

T = TypeVar("T")
NAME = click.argument("name")


class Wish(TypedDict):
    """Options of a declaration."""

    to: str
    name: str | None
    table_format: str
    mode: str
    key: str | None
    on_error: str
    interval: float
    step_size: int
    upkeep: float
    keep: float
    schema: Path | None
    partition: tuple[Partition, int] | None
    sort: str | None
    history: str


@click.group()
def tables() -> None:
    """Tables of Apache Iceberg or Delta Lake that follow topics, written by `offloaderd spark tables run`.

    A declaration is stored in the metadata, and says which topics become tables, where and how. All commands here work
    with the settings of a daemon (--config, or --standalone), and ask none.

    \b
    Examples:
      offloadctl tables create orders --to lake.shop --config offloaderd.toml
      offloadctl tables create 'public/default/*' --to /lake --interval 5min --config offloaderd.toml
      offloadctl tables create customers --to /lake --format delta --mode upsert --config offloaderd.toml
      offloadctl tables list --config offloaderd.toml
    """


def _with_store(session: Session, config: Path | None, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    settings = settings_of(session, config)

    async def opened() -> T:
        async with metadata_store(settings) as store:
            return await work(store)

    return session.run(opened())


@tables.command(short_help="Declare tables of a topic, or of all topics of a namespace.")
@click.argument("topics")
@click.option("--to", required=True, metavar="PLACE", help="CATALOGUE.NAMESPACE of pyiceberg's settings, or a folder.")
@click.option("--name", help="Name of the declaration. [default: that of the topic, or TENANT.NAMESPACE]")
@click.option(
    "--format",
    "table_format",
    type=click.Choice([one.value for one in TableFormat]),
    default=TableFormat.ICEBERG.value,
    show_default=True,
    help="Format of the tables.",
)
@click.option(
    "--mode",
    type=click.Choice([one.value for one in TableMode]),
    default=TableMode.APPEND.value,
    show_default=True,
    help="append: a row for each message. upsert: the last message of each key.",
)
@click.option(
    "--key", metavar="COLUMN,...", help="With upsert: the columns that identify a row. [default: the message's key]"
)
@click.option(
    "--on-error",
    type=click.Choice([one.value for one in OnError]),
    default=OnError.DEAD_LETTER.value,
    show_default=True,
    help="What becomes of messages that are no rows, and of entries that are lost.",
)
@click.option(
    "--interval", type=DURATION, default="1min", show_default=True, help="Time between two commits of a table."
)
@click.option(
    "--step-size", type=SIZE, default="1GiB", show_default=True, help="Bytes of segments that a table takes at a time."
)
@click.option(
    "--upkeep",
    type=options.duration_param(least=0),
    default="1h",
    show_default=True,
    help="Time between two runs of upkeep; 0: none.",
)
@click.option(
    "--keep", type=DURATION, default="7d", show_default=True, help="How long older versions of a table stay readable."
)
@click.option(
    "--schema",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The schema of values, where no cluster is asked: in Avro, or as pulsar-admin says.",
)
@click.option(
    "--partition",
    type=options.Parsed("partition", parse_partition),
    metavar="[hour|day|month|bucket:N|none]",
    help="Rows are in partitions by this part of their time, in UTC, or by N buckets of the message's key. "
    "[default: day; with upsert none]",
)
@click.option("--sort", metavar="COLUMN,...", help="The rows of each file are sorted by these columns.")
@click.option(
    "--history",
    type=click.Choice([one.value for one in History]),
    default=History.FIRST.value,
    show_default=True,
    help="first: what is there already, before what is new. beside: what is new at each interval, the rest in between.",
)
@click.option("--dry-run", is_flag=True, help="Only check, and show the declaration.")
@CONFIG
@options.common
def create(session: Session, *, topics: str, config: Path | None, dry_run: bool, **wish: Unpack[Wish]) -> int:
    """Declare that each topic of TOPICS (a topic, or TENANT/NAMESPACE/*) has a table in PLACE, named as the topic.

    The partitions of a topic are in one table. A declaration of a namespace includes topics that come later. Columns
    are the fields of the topic's schema, which is followed as it changes, and columns with _ in front: position, times,
    key, properties.

    \b
    Examples:
      offloadctl tables create orders --to lake.shop --config offloaderd.toml
      offloadctl tables create 'public/default/*' --to /lake --interval 5min --config offloaderd.toml
      offloadctl tables create customers --to /lake --format delta --mode upsert --key id --config offloaderd.toml
      offloadctl tables create clicks --to lake.shop --partition hour --sort user --config offloaderd.toml
      offloadctl tables create visits --to lake.shop --partition bucket:16 --config offloaderd.toml
      offloadctl tables create events --to lake.shop --history beside --config offloaderd.toml
    """
    declared = _declared(topics, wish).checked()
    _check_schema(declared)
    if not dry_run:
        _with_store(session, config, lambda store: stored.create(store, declared))
    said = "would declare" if dry_run else "declared"
    session.tell(
        {"declaration": _document(declared), "declared": not dry_run},
        f"{said} {declared.name}: {declared.topics} -> {declared.format} tables in {declared.to}, every "
        f"{age(declared.interval_s)}\nhint: `offloaderd spark tables run` writes them",
    )
    return OK


def _declared(topics: str, wish: Wish) -> Declaration:
    """Return the declaration that a command line asks for. Raises InvalidInput."""
    pattern, schema, to = TopicPattern.parse(topics), wish["schema"], wish["to"]
    partition, buckets = wish["partition"] or (None, 0)
    tenant, namespace = pattern.scope
    return Declaration(
        name=wish["name"] or (pattern.topic.local if pattern.topic is not None else f"{tenant}.{namespace}"),
        topics=pattern.text,
        to=str(Path(to).absolute()) if "/" in to and "://" not in to else to,
        format=TableFormat(wish["table_format"]),
        mode=TableMode(wish["mode"]),
        key=_columns(wish["key"]),
        on_error=OnError(wish["on_error"]),
        interval_s=wish["interval"],
        step_bytes=wish["step_size"],
        upkeep_s=wish["upkeep"],
        keep_s=wish["keep"],
        schema=schema.read_text(encoding="utf-8", errors="replace") if schema is not None else "",
        partition=partition,
        buckets=buckets,
        sort=_columns(wish["sort"]),
        history=History(wish["history"]),
        created_ms=SystemClock().wall_ms(),
        created_by=_user(),
    )


def _check_schema(declared: Declaration) -> None:
    """Raise InvalidInput for columns that a given schema lacks; without Spark here, the table's state will tell."""
    try:
        from offloaderd.spark.tables.rows import check_schema  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        return
    check_schema(declared)


def _columns(text: str | None) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(",")) if text else ()


@tables.command("list", short_help="List declarations, with their tables.")
@CONFIG
@options.common
def list_(session: Session, *, config: Path | None) -> int:
    """List declarations, the number of their tables, the largest lag, and the application that writes them now.

    Exit code 1 when a table fails.

    \b
    Examples:
      offloadctl tables list --config offloaderd.toml
      offloadctl tables list --config offloaderd.toml -o json | jq '.declarations[] | select(.failing > 0)'
    """

    async def read(store: MetadataStore) -> list[dict[str, object]]:
        rows = []
        for name, found in (await stored.load(store)).items():
            if not isinstance(found, Declaration):
                rows.append({"name": name, "topics": "", "to": str(found), "failing": 1})
                continue
            try:
                rows.append({**_document(found), **_summary(*await _said(store, name))})
            except CorruptData as error:
                rows.append({**_document(found), "tables": 0, "failing": 1, "writer": str(error)})
        return rows

    rows = _with_store(session, config, read)
    heads = "NAME,TOPICS,TO,FORMAT,MODE,PARTITION,SORT,TABLES,FAILING,LAG,HISTORY LEFT,WRITER"
    fields = (
        *("name", "topics", "to", "format", "mode", "partition", "sort", "tables", "failing", "lag_s"),
        *("history_entries", "writer"),
    )

    def write() -> None:
        show.table(heads.split(","), [[_text(name, row) for name in fields] for row in rows])

    session.tell({"declarations": rows}, write)
    return FAILED if any(row["failing"] for row in rows) else OK


@tables.command("show", short_help="Show a declaration and the state of each table.")
@NAME
@CONFIG
@options.common
def show_(session: Session, *, name: str, config: Path | None) -> int:
    """Show what is declared, and of each table how far it is behind, and why it does not go on.

    Exit code 1 when a table fails. The states are what the application has said last, at the end of a step; the lag
    grows until it says more. What was offloaded since is not in them.

    \b
    Examples:
      offloadctl tables show orders --config offloaderd.toml
      offloadctl tables show orders --config offloaderd.toml -o json | jq '.tables[] | {table, lag_s, error}'
    """

    async def read(store: MetadataStore) -> tuple[Declaration, States, str]:
        return await stored.named(store, name), *await _said(store, name)

    declared, states, writer = _with_store(session, config, read)
    by_now = states.by(SystemClock().wall_ms())

    def write() -> None:
        show.facts(
            [
                ("topics", declared.topics),
                ("to", f"{declared.to}, {declared.format}"),
                ("mode", declared.mode + (f" by {', '.join(declared.key)}" if declared.key else "")),
                ("history", declared.history),
                ("partition", declared.layout.text),
                ("sorted by", ", ".join(declared.sort) or "nothing"),
                ("on error", declared.on_error),
                ("interval", f"{age(declared.interval_s)}, {size(declared.step_bytes)} at a time"),
                ("declared", f"{show.moment(declared.created_ms)} by {declared.created_by}"),
                ("writer", _writer_text(states, writer)),
            ]
        )
        if states.tables:
            click.echo()
            show.table(
                ("TABLE", "ROWS", "APART", "LAG", "ENTRIES BEHIND", "HISTORY LEFT", "COMMITTED", "ERROR OR WAIT"),
                [_row(one) for one in by_now],
            )

    document = {"declaration": _document(declared), **_writers(states, writer)}
    session.tell({**document, "tables": [asdict(one) for one in by_now]}, write)
    return FAILED if any(one.error for one in states.tables) else OK


@tables.command(short_help="Remove a declaration; its tables stay.")
@NAME
@click.option("--yes", is_flag=True, help="Do it. Without this it is only shown what would be removed.")
@CONFIG
@options.common
def drop(session: Session, *, name: str, yes: bool, config: Path | None) -> int:
    """Remove a declaration. Tables, and the positions in them, stay: the same declaration made again goes on there.

    \b
    Examples:
      offloadctl tables drop orders --config offloaderd.toml
      offloadctl tables drop orders --yes --config offloaderd.toml
    """

    async def removed(store: MetadataStore) -> str:
        try:
            said = (declared := await stored.named(store, name)).topics + " -> " + declared.to
        except CorruptData as error:
            said = str(error)
        if yes:
            await stored.drop(store, name)
        return said

    what = _with_store(session, config, removed)
    said = "dropped" if yes else "would drop"
    after = "" if yes else "\nnothing was done; --yes does it"
    session.tell({"name": name, "dropped": yes}, f"{said} {name}: {what}; the tables stay{after}")
    return OK


def _user() -> str:
    """Return the name of the user, or the number of one without a name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _document(declared: Declaration) -> dict[str, object]:
    lists = {"key": list(declared.key), "sort": list(declared.sort)}
    return {**asdict(declared), **lists, "partition": declared.layout.text}


async def _said(store: MetadataStore, name: str) -> tuple[States, str]:
    """Return what was last said of the tables of a declaration, and who writes them now; empty for nobody."""
    return await stored.states(store, name), await stored.writer(store, name)


def _summary(states: States, writer: str) -> dict[str, object]:
    return {
        "tables": len(states.tables),
        "failing": states.failing,
        "lag_s": states.lag_s(SystemClock().wall_ms()),
        "history_entries": sum(one.history_entries for one in states.tables),
        **_writers(states, writer),
    }


def _writers(states: States, writer: str) -> dict[str, object]:
    return {"writer": writer, "last_writer": states.writer, "at_ms": states.at_ms}


def _writer_text(states: States, writer: str) -> str:
    if not states.at_ms:
        return writer or "nobody yet: offloaderd spark tables run"
    last = f"{show.moment(states.at_ms)}, when {states.writer} was heard of last"
    return f"{writer}, states of {last}" if writer else f"nobody since {last}: offloaderd spark tables run"


def _text(name: str, row: Mapping[str, Any]) -> str:
    value = row.get(name, "")
    if name == "writer" and "at_ms" in row:
        return str(value) or (f"nobody since {show.moment(row['at_ms'])}" if row["at_ms"] else "nobody yet")
    if isinstance(value, list):
        return ",".join(value) or "-"
    return f"{value:.0f} s" if name == "lag_s" and isinstance(value, float) else str(value)


def _row(one: TableState) -> list[str]:
    committed = show.moment(one.committed_ms) if one.committed_ms else ""
    why = one.error or (one.waits and f"waits: {one.waits}")
    numbers = str(one.rows), str(one.apart), f"{one.lag_s:.0f} s", str(one.lag_entries), str(one.history_entries)
    return [one.table, *numbers, committed, why]
