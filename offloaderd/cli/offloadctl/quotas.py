"""`offloadctl quotas`: what tenants and namespaces use, its limits, and the sums for their bills."""

import csv
import io
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click

from offloaderd.cli import options, show
from offloaderd.cli.options import Session
from offloaderd.core.errors import InvalidInput
from offloaderd.policy.policies import Kind
from offloaderd.policy.quota_fields import FIELDS
from offloaderd.protocol.conversion import as_json
from offloaderd.protocol.v1 import quota_pb2

HELP = {
    "write_bytes_per_s": "Payload bytes a second that each daemon takes in; more wait in the source.",
    "read_bytes_per_s": "Bytes a second that each daemon sends to readers; more wait.",
    "stored_bytes": "Bytes of data objects in the cluster; then nothing more is offloaded.",
    "topics": "Enabled topics in the cluster; further ones are refused.",
    "readers": "Reads open at a time on each daemon.",
    "calls": "Calls open at a time on each daemon.",
    "unpack_bytes": "Memory of each daemon for unpacked messages.",
    "weight": "Share of what namespaces wait for, 1 to 1000; of a tenant: its namespaces share it.",
}
METAVARS = {Kind.BYTES: "SIZE", Kind.NUMBER: "NUMBER"}
LEVEL = click.argument("level", metavar="LEVEL")
PREFIX = click.argument("prefix", metavar="[TENANT[/NAMESPACE]]", default="")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Change nothing; check the values.")


@click.group(invoke_without_command=True)
@options.common
def quotas(session: Session) -> None:
    """Show what tenants and namespaces use, and set quotas. Without a command it shows all.

    A level is TENANT/NAMESPACE, TENANT (for all its namespaces together), or * (for each namespace without a value).

    \b
    Examples:
      offloadctl quotas
      offloadctl quotas set acme/eu --stored 500G --read-rate 50M
    """
    if click.get_current_context().invoked_subcommand is None:
        _show(session, "")


@quotas.command(name="show", short_help="Show the quotas and what is used of them.")
@PREFIX
@options.common
def show_(session: Session, prefix: str) -> None:
    """Show the quotas in force and what is used of them. Stored bytes and topics are those of the cluster, the rest
    that of the contacted daemon.

    \b
    Examples:
      offloadctl quotas show acme
      offloadctl quotas show acme/eu --json | jq '.namespaces[0].used.stored_bytes'
    """
    _show(session, prefix)


def _show(session: Session, prefix: str) -> None:
    found = session.ask(lambda client: client.quotas(prefix))
    document = {
        "daemon_id": found.daemon_id,
        "counted_age_s": _counted_age_s(found),
        "namespaces": [_document(one) for one in found.namespaces],
    }
    session.tell(document, lambda: _shown(found))


def _shown(found: quota_pb2.ListQuotasResponse) -> None:
    show.table(["LEVEL", "QUOTA", ">USED", ">LIMIT", "SET"], _rows(found.namespaces))
    age_s = _counted_age_s(found)
    if age_s is None:
        show.note(f"note: {found.daemon_id} has just started: stored bytes lack those of other daemons")
    else:
        show.note(f"note: stored bytes and topics were counted up to {show.age(age_s)} ago")


def _counted_age_s(found: quota_pb2.ListQuotasResponse) -> float | None:
    return found.counted_age_s if found.HasField("counted_age_s") else None


def _document(one: quota_pb2.NamespaceQuotas) -> dict[str, object]:
    inner = {name: as_json(getattr(one, name)) for name in ("own", "effective", "used")}
    return {**as_json(one, leave_out=tuple(inner)), **inner}


def _rows(namespaces: Sequence[quota_pb2.NamespaceQuotas]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for one in namespaces:
        own, limits, used = map(_values, (one.own, one.effective if one.name != "*" else one.own, one.used))
        for name in FIELDS:
            if name in limits or used.get(name):
                where = "here" if name in own else "*" if name in limits else "-"
                rows.append((one.name, name, _used(name, used.get(name)), FIELDS[name].shown(limits.get(name)), where))
    return rows


def _used(name: str, value: int | None) -> str:
    """Return what is used: a size as people read it, as it is hardly ever a round one."""
    return show.size(value) if value is not None and FIELDS[name].kind is Kind.BYTES else FIELDS[name].shown(value)


def _values(quotas: quota_pb2.Quotas) -> dict[str, int]:
    """Return the values that are set."""
    return {field.name: value for field, value in quotas.ListFields()}


def quota_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for every quota; the function gets the values as `given`."""

    @wraps(function)
    def command(**arguments: Any) -> Any:  # noqa: ANN401 - a command's own arguments
        return function(given=_given({name: arguments.pop(name) for name in FIELDS}), **arguments)

    wrapped: Callable[..., Any] = command
    for name, field in reversed(list(FIELDS.items())):
        wrapped = click.option(f"--{field.option}", name, metavar=METAVARS[field.kind], help=HELP[name])(wrapped)
    return wrapped


def _given(texts: dict[str, str | None]) -> quota_pb2.Quotas:
    """Return the values of the options as a message. Raises UsageError with every mistake."""
    values: dict[str, Any] = {}
    mistakes = []
    for name, text in texts.items():
        if text is None:
            continue
        try:
            values[name] = FIELDS[name].read(text)
        except InvalidInput as error:
            mistakes.append(error.message)
    if mistakes:
        raise click.UsageError("\n".join(mistakes))
    return quota_pb2.Quotas(**values)


@quotas.command(name="set", short_help="Set the quotas of a level.")
@LEVEL
@quota_options
@DRY_RUN
@options.common
def set_(session: Session, level: str, given: quota_pb2.Quotas, *, dry_run: bool) -> None:
    """Set the quotas of LEVEL, instead of all those set there before. A value that is not given is that of the broker
    level; `off` is no limit.

    Nobody sets quotas of his own: those of a namespace need the role admin for its tenant, others for everything.

    \b
    Examples:
      offloadctl quotas set acme/eu --stored 500G --read-rate 50M --readers 20
      offloadctl quotas set acme --topics 1000
      offloadctl quotas set '*' --write-rate 20M --dry-run
    """
    if not given.ListFields():
        raise click.UsageError("give at least one quota; `offloadctl quotas remove LEVEL` removes them")
    _change(session, level, given, dry_run=dry_run)


@quotas.command(short_help="Remove the quotas of a level.")
@LEVEL
@DRY_RUN
@options.common
def remove(session: Session, level: str, *, dry_run: bool) -> None:
    """Remove the quotas that were set for LEVEL; those of the broker level hold for it then.

    \b
    Examples:
      offloadctl quotas remove acme/eu
    """
    _change(session, level, quota_pb2.Quotas(), dry_run=dry_run)


def _change(session: Session, level: str, given: quota_pb2.Quotas, *, dry_run: bool) -> None:
    done = session.ask(lambda client: client.set_quotas(level, given, dry_run=dry_run))
    document = {"level": level, "dry_run": dry_run, "before": as_json(done.before), "after": as_json(given)}
    session.tell({**document, "notes": list(done.notes)}, lambda: _told(level, given, done, dry_run=dry_run))


def _told(level: str, given: quota_pb2.Quotas, done: quota_pb2.SetQuotasResponse, *, dry_run: bool) -> None:
    values = ", ".join(f"{field.name} = {FIELDS[field.name].shown(value)}" for field, value in given.ListFields())
    click.echo(f"{'would set' if dry_run else 'set'} the quotas of {level}: {values or 'none of its own'}")
    if gone := [name for name in _values(done.before) if name not in _values(given)]:
        click.echo(f"{'would remove' if dry_run else 'removed'}: {', '.join(gone)}")
    for note in done.notes:
        show.note(f"note: {note}")


COLUMNS = (
    "tenant", "namespace", "since_ms", "stored_byte_hours", "requests", "egress_bytes", "written_bytes", "stored_bytes",
    "topics",
)  # fmt: skip


@quotas.command(short_help="Write the sums for bills as CSV.")
@PREFIX
@options.common
def export(session: Session, prefix: str) -> None:
    """Write a line of CSV for each namespace: stored byte-hours, requests, bytes sent to readers (egress) and taken in,
    since the first start of the daemons, and what is stored now.

    The sums only rise, also over restarts; a bill is the difference of two exports. They are at most some minutes old.

    \b
    Examples:
      offloadctl quotas export > usage.csv
      offloadctl quotas export acme
    """
    found = session.ask(lambda client: client.quotas(prefix))
    rows = [_bill(one) for one in found.namespaces if "/" in one.name]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    document = {"counted_age_s": _counted_age_s(found), "namespaces": rows}
    session.tell(document, text.getvalue().rstrip("\n"))


def _bill(one: quota_pb2.NamespaceQuotas) -> dict[str, object]:
    tenant, _, namespace = one.name.partition("/")
    return {
        "tenant": tenant,
        "namespace": namespace,
        "since_ms": one.since_ms,
        "stored_byte_hours": round(one.stored_byte_hours, 3),
        "requests": one.requests,
        "egress_bytes": one.read_bytes,
        "written_bytes": one.written_bytes,
        "stored_bytes": one.used.stored_bytes,
        "topics": one.used.topics,
    }
