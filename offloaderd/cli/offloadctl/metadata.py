"""`offloadctl metadata`: captures of what topics need besides their entries."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from offloaderd.capture import storage
from offloaderd.capture.cluster import PulsarMetadata
from offloaderd.capture.keeper import take
from offloaderd.capture.records import Capture, Kind, changes, decode, encode, text_lines
from offloaderd.capture.restore import restore
from offloaderd.capture.storage import NEWEST, StoredCapture
from offloaderd.cli import options, show
from offloaderd.cli.jobs import settings_of
from offloaderd.cli.options import Session
from offloaderd.cli.program import FAILED, OK
from offloaderd.cli.settings import CONFIG
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import InvalidInput
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.stores import metadata_store, open_ledgers, sites
from offloaderd.metadata.port import MetadataStore
from offloaderd.objects.opening import bucket_store
from offloaderd.objects.port import ObjectStore
from offloaderd.protocol.conversion import picked
from offloaderd.upkeep.stored import Site

NOW = "now"
COUNTED = (Kind.SUBSCRIPTION, Kind.SCHEMA, Kind.NAMESPACE, Kind.NODE)
SHOWN_CHARS = 100


@click.group()
def metadata() -> None:
    """Captures: what topics need besides their entries, as objects in the bucket.

    A daemon takes one at an interval (capture.interval_s): subscriptions with their positions, schemas, policies,
    properties and partitions, out of the cluster's metadata; and offloaderd's own policies, selections, quotas and
    revocations. `offloaderd mount` and `offloaderd rebuild` use the newest. All commands here work with the settings
    of a daemon, and ask none.

    \b
    Examples:
      offloadctl metadata list --config offloaderd.toml
      offloadctl metadata capture --config offloaderd.toml
      offloadctl metadata diff 20261128T210000Z-1a2b3c4d now --config offloaderd.toml
      offloadctl metadata import --config offloaderd.toml --apply
    """


@dataclass(frozen=True, slots=True)
class Opened:
    """The stores of a command."""

    settings: Settings
    objects: ObjectStore
    clock: SystemClock

    @property
    def site(self) -> Site:
        """The place of captures."""
        return sites(self.settings)[0]

    async def read(self, name: str) -> Capture:
        """Return a capture of the bucket, that of a file, or what there is now."""
        if name == NOW:
            return await self.now()
        if name != NEWEST and (document := await asyncio.to_thread(_file, name)) is not None:
            return decode(document, key=name)
        return (await storage.read(self.objects, self.site, name))[1]

    async def now(self) -> Capture:
        """Take a capture, which is not stored."""
        async with AsyncExitStack() as stack:
            store: MetadataStore = await stack.enter_async_context(metadata_store(self.settings))
            pulsar: PulsarMetadata | None = None
            if self.settings.ledgers.kind == "bookkeeper":
                pulsar = (await open_ledgers(stack, self.settings, clock=self.clock, metrics=Metrics())).pulsar
            return await take(store, pulsar, cluster=self.settings.daemon.cluster, clock=self.clock)


def _file(name: str) -> bytes | None:
    path = Path(name)
    return path.read_bytes() if path.is_file() else None


@asynccontextmanager
async def _opened(session: Session, config: Path | None) -> AsyncIterator[Opened]:
    settings, clock = settings_of(session, config), SystemClock()
    async with bucket_store(settings.objects, clock) as objects:
        yield Opened(settings, objects, clock)


@metadata.command("list")
@CONFIG
@options.common
def list_(session: Session, *, config: Path | None) -> int:
    """List the captures in the bucket, the newest first.

    \b
    Examples:
      offloadctl metadata list --config offloaderd.toml
      offloadctl metadata list --config offloaderd.toml -o json | jq -r '.captures[0].name'
    """

    async def listed() -> list[StoredCapture]:
        async with _opened(session, config) as stores:
            return await storage.stored_captures(stores.objects, stores.site)

    rows = [_row(one) for one in session.run(listed())]
    session.tell({"captures": rows}, lambda: STORED.show(rows))
    return OK


@metadata.command()
@CONFIG
@options.common
def capture(session: Session, *, config: Path | None) -> int:
    """Take a capture now, and store it in the bucket. Exit code 1 when something could not be read.

    \b
    Examples:
      offloadctl metadata capture --config offloaderd.toml
    """

    async def captured() -> tuple[StoredCapture, Capture]:
        async with _opened(session, config) as stores:
            taken = await stores.now()
            stored = await storage.write(stores.objects, stores.site, taken)
            await storage.prune(stores.objects, stores.site, stores.settings.capture.keep, taken.deployment_id)
            return stored, taken

    stored, taken = session.run(captured())

    def write() -> None:
        for problem in taken.problems:
            click.echo(f"PROBLEM  {problem}")
        click.echo(f"stored {stored.name}: {_described(taken)}")

    session.tell({**_row(stored), "records": _counts(taken), "problems": list(taken.problems)}, write)
    return FAILED if taken.problems else OK


@metadata.command()
@click.argument("name", metavar="[CAPTURE]", default=NEWEST)
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the document there as it is stored (JSON lines, gzip). Without this its lines are printed.",
)
@CONFIG
@options.common
def export(session: Session, *, name: str, output: Path | None, config: Path | None) -> int:
    """Show a capture of the bucket, or write it to a file. CAPTURE is a name of `list`, "newest" or "now".

    \b
    Examples:
      offloadctl metadata export --config offloaderd.toml | jq 'select(.kind == "subscription")'
      offloadctl metadata export newest --output capture.jsonl.gz --config offloaderd.toml
    """

    async def read() -> Capture:
        async with _opened(session, config) as stores:
            return await stores.read(name)

    found = session.run(read())
    if output is None:
        for line in text_lines(found):
            click.echo(line)
    else:
        output.write_bytes(encode(found))
        session.tell({"file": str(output), "records": _counts(found)}, f"wrote {output}: {_described(found)}")
    return OK


@metadata.command()
@click.argument("before")
@click.argument("after", default=NOW)
@CONFIG
@options.common
def diff(session: Session, *, before: str, after: str, config: Path | None) -> int:
    """Show what differs between two captures: names of `list`, "newest", "now", or files. Exit code 1 if anything does.

    \b
    Examples:
      offloadctl metadata diff newest now --config offloaderd.toml
      offloadctl metadata diff capture.jsonl.gz newest --config offloaderd.toml -o json
    """

    async def read() -> tuple[Capture, Capture]:
        async with _opened(session, config) as stores:
            return await stores.read(before), await stores.read(after)

    found = changes(*session.run(read()))
    rows: list[dict[str, Any]] = [
        {"kind": one.key[0], "about": one.key[1], "name": one.key[2], "before": one.before, "after": one.after}
        for one in found
    ]

    def write() -> None:
        for row in rows:
            click.echo(" ".join(filter(None, (row["kind"], row["about"], row["name"]))))
            for mark, value in (("-", row["before"]), ("+", row["after"])):
                if value is not None:
                    click.echo(f"  {mark} {_shortened(json.dumps(value, ensure_ascii=False))}")
        click.echo(f"{show.plural(len(rows), 'record')} differ" if rows else "no record differs")

    session.tell({"changes": rows}, write)
    return FAILED if rows else OK


@metadata.command("import")
@click.argument("name", metavar="[CAPTURE]", default=NEWEST)
@click.option("--apply", "apply_", is_flag=True, help="Write. Without this only the plan is shown.")
@CONFIG
@options.common
def import_(session: Session, *, name: str, apply_: bool, config: Path | None) -> int:
    """Write offloaderd's own policies, selections, quotas, pauses and revocations out of a capture where they are
    missing, as after a rebuild. What is there stays. What is Pulsar's own is not written: offloaderd mount does that.

    \b
    Examples:
      offloadctl metadata import --config offloaderd.toml
      offloadctl metadata import capture.jsonl.gz --config offloaderd.toml --apply
    """
    if name == NOW:
        raise InvalidInput("what there is now needs no import", hint="name a capture: offloadctl metadata list")

    async def imported() -> Any:  # noqa: ANN401 - Restored
        async with _opened(session, config) as stores, metadata_store(stores.settings) as store:
            found = await stores.read(name)
            if found.cluster != stores.site.cluster:
                raise InvalidInput(
                    f"{name} is a capture of cluster {found.cluster!r}, not of {stores.site.cluster!r}",
                    hint="correct daemon.cluster in the settings file, or name another capture",
                )
            return await restore(store, found, stores.clock, write=apply_)

    done = session.run(imported())

    def write() -> None:
        for path in done.written:
            click.echo(f"{'written' if apply_ else 'missing'}  {path}")
        for path, why in done.left.items():
            click.echo(f"left     {path}: {why}")
        verb = "wrote" if apply_ else "would write"
        click.echo(f"{verb} {show.plural(len(done.written), 'node')}, left {len(done.left)}")

    session.tell({"applied": apply_, "written": done.written, "left": done.left}, write)
    return OK


def _row(one: StoredCapture) -> dict[str, object]:
    return {
        **picked(one, "name", "deployment", "complete", "size_bytes"),
        "taken": datetime.fromtimestamp(one.taken_ms / 1000, UTC).isoformat(),
    }


def _counts(found: Capture) -> dict[str, int]:
    """Return the number of records of each kind."""
    return dict(sorted(Counter(kind for kind, _, _ in found.records).items()))


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 1]}…"


def _described(found: Capture) -> str:
    counts = _counts(found)
    return ", ".join(show.plural(counts.get(kind, 0), kind.value) for kind in COUNTED)


STORED = show.Table[dict[str, object]](("TAKEN", "taken"), ("NAME", "name"), (">SIZE", "size_bytes"))
