"""`offloadctl gc`: find objects of the bucket without a reference, and delete them."""

from collections.abc import Awaitable, Sequence

import click

from offloaderd.cli import options, show
from offloaderd.cli.options import Session, duration_param, last_of
from offloaderd.cli.program import FAILED, OK
from offloaderd.client import DaemonClient
from offloaderd.protocol.conversion import as_json
from offloaderd.protocol.v1 import upkeep_pb2

QUIET = frozenset({"young", "foreign"})
"""Kinds that are only counted without --all."""


@click.command()
@click.option("--apply", "apply_", is_flag=True, help="Delete what was found. Without this nothing is deleted.")
@click.option(
    "--grace",
    "grace_s",
    metavar="TIME",
    type=duration_param(0),
    help="Keep what is younger, by the clock of the store. [default: gc.grace_s of the daemon]",
)
@click.option(
    "--also",
    metavar="SEGMENT",
    multiple=True,
    help="Delete this segment too, although it raises an alarm; not if a topic refers to it. May be repeated.",
)
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help="Also list young objects, those of other writers, and each object of an alarm.",
)
@options.YES
@options.common
def gc(
    session: Session, *, apply_: bool, grace_s: float | None, also: tuple[str, ...], show_all: bool, yes: bool
) -> int:
    """Compare the bucket and its open uploads with the metadata of all topics of the cluster.

    An object is deleted only if no topic refers to it, this cluster wrote it, it is older than the grace age, and all
    its entries are stored elsewhere as well. Missing objects of committed segments, and segments that a lost map should
    have, are alarms: this command does not repair them. Exit code 1 when there is an alarm, or a deletion failed.

    \b
    Examples:
      offloadctl gc
      offloadctl gc --apply --yes
      offloadctl gc --apply --also 2c2f8f6e-8d4f-4b8f-9f36-0d8a6a1f2b11
      offloadctl gc -o json | jq -r '.finds[] | select(.verdict == "alarm") | "\\(.key) \\(.reason)"'
    """
    if apply_ and not yes:
        options.confirm("Delete the objects without a reference? This cannot be undone")
    finds: list[upkeep_pb2.GcFind] = []

    def take(event: upkeep_pb2.GcEvent) -> None:
        if event.HasField("find") and (show_all or event.find.kind not in QUIET):
            finds.append(event.find)

    def gc(client: DaemonClient) -> Awaitable[upkeep_pb2.GcEvent]:
        return last_of(client.gc(apply=apply_, grace_s=grace_s, also=also, timeout_s=session.timeout_s), take)

    summary = session.ask(gc).summary  # a stream that ends well ends with it
    told = [(find, 1) for find in finds] if show_all else _alike(finds)
    table = f"{show.rendered(COLUMNS, (_row(find, count) for find, count in told))}\n" if told else ""
    document = {"finds": [as_json(find) for find in finds], "summary": as_json(summary)}
    session.tell(document, table + "\n".join(_lines(summary)))
    return FAILED if summary.verdicts["alarm"] or summary.verdicts["failed"] else OK


COLUMNS = ("VERDICT", "KIND", ">SIZE", ">AGE", "KEY", "REASON")


def _alike(finds: Sequence[upkeep_pb2.GcFind]) -> list[tuple[upkeep_pb2.GcFind, int]]:
    """Return finds in order, each with its count: alarms with the same reason become one, with the sum of bytes."""
    told: dict[tuple[str, ...], tuple[upkeep_pb2.GcFind, int]] = {}
    for find in finds:
        what = (find.kind, find.reason) if find.verdict == "alarm" else (find.kind, find.key, find.upload_id)
        if what in told:
            first, count = told[what]
            first.size_bytes += find.size_bytes
            first.age_s = max(first.age_s, find.age_s)
            told[what] = first, count + 1
        else:
            told[what] = type(find).FromString(find.SerializeToString()), 1
    return list(told.values())


def _row(find: upkeep_pb2.GcFind, count: int) -> tuple[str, ...]:
    size = "upload" if find.upload_id else show.size(find.size_bytes)
    verdict = find.verdict.upper() if find.verdict in {"alarm", "failed"} else find.verdict
    key = find.key if count == 1 else f"{find.key} and {show.number(count - 1)} more"
    return verdict, find.kind, size, show.age(find.age_s) if find.age_s else "-", key, find.reason


def _lines(summary: upkeep_pb2.GcSummary) -> list[str]:
    objects = f"{show.plural(summary.objects, 'object')} ({show.size(summary.object_bytes)})"
    held = f"{objects} of {show.plural(summary.segments, 'segment')} and {show.plural(summary.topics, 'topic')}"
    looked = f"inspected {held} in {show.age(summary.seconds)}"
    beside = []
    if summary.others:
        beside.append(f"{show.plural(summary.others, 'object')} with other keys")
    if summary.elsewhere:
        beside.append(f"{show.plural(summary.elsewhere, 'segment')} stored elsewhere")
    said = [looked + (f"; not {' and '.join(beside)}" if beside else "")]
    counts = summary.verdicts
    if summary.applied:
        said.append(f"deleted {show.number(counts['deleted'])} ({show.size(summary.deleted_bytes)})")
    else:
        said.append(f"would delete {show.number(counts['delete'])} ({show.size(summary.rubbish_bytes)})")
    kept = [f"{show.number(summary.finds[kind])} {kind}" for kind in sorted(QUIET) if summary.finds[kind]]
    if kept:
        said[-1] += f"; not deleted: {', '.join(kept)} (grace {show.age(summary.grace_s)})"
    if counts["failed"]:
        said.append(f"{show.plural(counts['failed'], 'deletion')} failed; the next collection tries again")
    if counts["alarm"]:
        said.append(f"{show.plural(counts['alarm'], 'alarm')}: docs/failures.md says what to do")
    if not summary.applied and counts["delete"]:
        said.append("nothing was deleted: this was a dry run, add --apply")
    return said
