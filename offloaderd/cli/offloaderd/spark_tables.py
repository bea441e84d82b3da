"""`offloaderd spark tables`: the application that writes declared tables."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from offloaderd.cli import show
from offloaderd.cli.jobs import MASTER, SPARK_CONF, spark_settings
from offloaderd.cli.program import FAILED, OK
from offloaderd.cli.settings import CONFIG, STANDALONE, usual
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import InvalidConfig
from offloaderd.standalone import state

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from offloaderd.tables.store import TableState

FAIR = {"spark.scheduler.mode": "FAIR"}


class Wish(TypedDict):
    """Options of a run."""

    conf: tuple[str, ...]
    once: bool
    parallel: int
    metrics: str | None


@click.group()
def tables() -> None:
    """Tables that follow topics, as `offloadctl tables` has declared them.

    \b
    Examples:
      offloaderd spark tables run --config offloaderd.toml
    """


@tables.command(short_help="Keep the declared tables up to date.")
@click.argument("names", nargs=-1, metavar="[DECLARATION...]")
@click.option(
    "--once",
    is_flag=True,
    help="End when each table has all that is offloaded. Exit code 1 if one fails; an error if another application "
    "writes one.",
)
@click.option("--parallel", type=click.IntRange(1, 64), default=4, show_default=True, help="Tables at a time.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus there.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON, one object for each step.")
@CONFIG
@STANDALONE
@MASTER
@SPARK_CONF
def run(
    *,
    names: tuple[str, ...],
    config: Path | None,
    standalone: Path | None,
    master: str | None,
    as_json: bool,
    **wish: Unpack[Wish],
) -> int:
    """Write all declared tables, or those of each DECLARATION, until stopped (SIGTERM, SIGINT).

    Each table is committed at its interval, each message exactly once: the positions are in the commit. It may be
    killed at any time, and goes on where the table is. Two applications share the declarations: one writes all tables
    of one.

    \b
    Examples:
      offloaderd spark tables run --config offloaderd.toml
      offloaderd spark tables run orders --once --config offloaderd.toml
      offloaderd spark tables run --metrics 0.0.0.0:9108 --master yarn --config offloaderd.toml
    """
    from offloaderd.daemon import log  # noqa: PLC0415 - --help need not wait for Spark
    from offloaderd.spark.session import check_libraries, spark_session  # noqa: PLC0415

    check_libraries()
    from prometheus_client import CollectorRegistry  # noqa: PLC0415

    from offloaderd.spark.export.export import own_session  # noqa: PLC0415
    from offloaderd.spark.tables.application import Application  # noqa: PLC0415

    log.configure("warning" if not as_json else "critical")
    directory = standalone or usual(config)
    if directory is not None:
        from offloaderd.standalone.stack import environment_of  # noqa: PLC0415

        os.environ.update(environment_of(state.load(directory), directory))  # which Spark's processes inherit
    options = {"config": str(config.absolute())} if config else {}
    registry = CollectorRegistry()
    own = {**FAIR, **spark_settings(wish["conf"])}
    with spark_session("offloaderd tables", master=master, options=own, starting=show.note) as session:
        application = Application(
            own_session(session),
            options,
            clock=SystemClock(),
            registry=registry,
            names=frozenset(names),
            parallel=wish["parallel"],
            tell=_tell_json if as_json else _tell,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: application.stop())
        with _served(wish["metrics"], registry):
            sound = application.run(once=wish["once"])
    return OK if sound else FAILED


@contextmanager
def _served(address: str | None, registry: CollectorRegistry) -> Iterator[None]:
    """Serve the page of metrics meanwhile. Raises InvalidConfig for an address that cannot be listened on."""
    if address is None:
        yield
        return
    from prometheus_client import start_http_server  # noqa: PLC0415 - as above

    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]") or "127.0.0.1", registry)
    except (OSError, ValueError, OverflowError) as error:
        raise InvalidConfig(f"--metrics {address}: {error}", hint="write HOST:PORT of this machine") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _tell(name: str, one: TableState) -> None:
    if one.error:
        click.echo(f"{name}/{one.table}: FAILED {one.error}", err=True)
    elif one.committed_ms or one.lag_entries:
        behind = (
            f"{show.number(one.lag_entries)} entries behind, {one.lag_s:.0f} s" if one.lag_entries else "up to date"
        )
        apart = f", {show.plural(one.apart, 'message')} apart" if one.apart else ""
        waits = f"; waits: {one.waits}" if one.waits else ""
        click.echo(f"{name}/{one.table}: {show.plural(one.rows, 'row')}{apart}; {behind}{waits}")


def _tell_json(name: str, one: TableState) -> None:
    click.echo(show.json_line({"declaration": name, **asdict(one)}), nl=False)
