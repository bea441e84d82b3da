"""`offloadctl segments`, `verify` and `explain`: list segments, compare them with the bucket, locate an entry."""

from collections.abc import Awaitable

import click

from offloaderd.cli import options, show
from offloaderd.cli.options import Session, last_of
from offloaderd.cli.program import CORRUPT, FAILED, NOT_FOUND, OK
from offloaderd.cli.progress import Bars
from offloaderd.client import DaemonClient
from offloaderd.core.model import Position, TopicName
from offloaderd.protocol.conversion import as_json, picked
from offloaderd.protocol.v1 import inspect_pb2


@click.command()
@click.argument("topic", type=options.TOPIC)
@options.common
def segments(session: Session, topic: TopicName) -> None:
    """List a topic's segments in order: method, range, size, object; the open one last.

    The writer is the driver that made it: offloaderd, or a broker's own, such as aws-s3.

    \b
    Examples:
      offloadctl segments orders
      offloadctl segments orders -o json | jq -r '.segments[].data_key'
    """
    found = session.ask(lambda client: client.segments(topic))
    document = {"topic": str(topic), "segments": [as_json(one, kept=("bucket",)) for one in found]}
    session.tell(document, lambda: show.SEGMENTS.show(found) if found else show.note(f"{topic} has no segments yet"))


@click.command()
@click.argument("topic", type=options.TOPIC)
@click.option(
    "--level",
    type=click.Choice(["metadata", "headers", "full"]),
    default="full",
    show_default=True,
    help="metadata: manifests, indexes, sizes. headers: also the header of each block. full: every byte.",
)
@options.common
def verify(session: Session, topic: TopicName, *, level: str) -> int:
    """Make the daemon read the committed segments of a topic, and show what differs from what was written.

    Nothing is changed, and any daemon can do it. Everything in the bucket, without a daemon: offloaderd verify. Exit
    code 5 when something is wrong.

    \b
    Examples:
      offloadctl verify orders
      offloadctl verify orders --level metadata
      offloadctl verify orders -o json | jq -r '.flaws[]? | select(.problem) | "\\(.key) \\(.offset)"'
    """
    problems = 0
    with Bars() as bars:

        def take(event: inspect_pb2.VerifyEvent) -> None:
            nonlocal problems
            if event.HasField("segment"):
                one, names = event.segment, ("segment_id", "begin", "end", "data_bytes", "read_bytes")
                bars.show("verifying", f"{one.number} of {one.of} segments", one.number, one.of)
                flaws, document = one.flaws, picked(one, *names, kept=("segment_id",))
                head = f"segment {one.segment_id} ({document['begin']} to {document['end']}):"
            else:
                flaws, document, head = event.between.flaws, picked(event.between, "segments"), "between segments:"
            problems += sum(flaw.is_problem for flaw in flaws)
            if session.structured or flaws:
                bars.clear()
            if session.structured:
                document["flaws"] = [show.flaw_json(flaw) for flaw in flaws]
                line = document if event.HasField("segment") else {"summary": document}
                session.item(line)
            elif flaws:
                click.echo(head)
                show.write_flaws(flaws)

        def verify(client: DaemonClient) -> Awaitable[inspect_pb2.VerifyEvent]:
            return last_of(client.verify(topic, level=level, timeout_s=session.timeout_s), take)

        last = session.ask(verify).between
    if not session.structured:
        verdict = show.plural(problems, "problem") if problems else "no problem"
        click.echo(f"read {show.size(last.read_bytes)} of {show.plural(last.segments, 'segment')}: {verdict}")
    return CORRUPT if problems else OK


THERE = frozenset({"offloaded", "not-offloaded"})
UNREACHABLE = "unreachable"
"""Kind of the flaw that the bucket did not answer."""


@click.command()
@click.argument("topic", type=options.TOPIC)
@click.argument("position", type=options.POSITION, required=False)
@options.common
def explain(session: Session, topic: TopicName, position: Position | None) -> int:
    """Show where an entry is stored: its tiers, object and bytes, and when it was verified; or why there is none.

    Without POSITION: which entries of the topic are in the buffer, the source, each place and each table, drawn on one
    scale from the oldest entry to the newest.

    Its block is read from the bucket and its checksum compared. Exit code 4 when there is no such entry (deleted, lost,
    not written yet), 5 when the copy in the bucket is damaged, 1 when the bucket does not answer: the
    answer then comes after some seconds, without what only the bucket knows.

    \b
    Examples:
      offloadctl explain orders
      offloadctl explain orders 12:345
      offloadctl explain orders 12:345 -o json | jq -r '.place | "\\(.data_key) \\(.payload_offset) \\(.payload_bytes)"'
    """
    if position is None:
        return _layout(session, topic)
    found = session.ask(lambda client: client.explain(topic, position))
    todo = f"\n-> {found.what_to_do}" if found.what_to_do else ""
    session.tell(
        {"topic": str(topic), "position": str(position), **_explained(found)},
        f"{position} of {topic}: {found.text}{todo}\n{show.fact_lines(_facts(found))}",
    )
    if found.HasField("place") and found.place.HasField("flaw"):
        return FAILED if found.place.flaw.kind == UNREACHABLE else CORRUPT
    return OK if found.state in THERE else NOT_FOUND


def _layout(session: Session, topic: TopicName) -> int:
    found = session.ask(lambda client: client.layout(topic))
    session.tell({"topic": str(topic), **as_json(found)}, lambda: show.write_layout(str(topic), found))
    return OK


def _facts(found: inspect_pb2.ExplainResponse) -> list[tuple[str, str]]:
    pairs = [("tiers", _tiers(found))]
    if found.HasField("place"):
        pairs += _place_facts(found.place)
    pairs.append(("owner", f"{found.owner} ({found.owner_address}), epoch {found.epoch}" if found.owner else "none"))
    entries = show.plural(found.ledger_entries, "entry", "entries")
    closed = f"closed, offloaded to its end ({entries})" if found.HasField("ledger_entries") else ""
    deleted = f"marked deleted {show.moment(found.ledger_deleted_ms)}" if found.ledger_deleted_ms else ""
    if closed or deleted:
        pairs.append(("ledger", "; ".join(filter(None, (closed, deleted)))))
    pairs.append(("grant", _grant(found)))
    return pairs


def _tiers(found: inspect_pb2.ExplainResponse) -> str:
    named = (("buffer", found.in_buffer), ("source", found.in_source), ("bucket", found.in_objects))
    held = [name for name, there in named if there]
    said = ", ".join(held) or "none"
    return said if found.HasField("in_source") else f"{said}; the source cannot be read: {found.source_trouble}"


def _place_facts(place: inspect_pb2.ExplainResponse.Place) -> list[tuple[str, str]]:
    begin, end = show.position_of(place, "begin"), show.position_of(place, "end")
    pairs = [
        ("segment", f"{place.segment_id} ({begin} to {end}), offloaded {show.moment(place.offloaded_ms)}"),
        ("object", f"{place.bucket}/{place.data_key} ({show.size(place.data_bytes)})"),
    ]
    if place.block_number:
        first, last = show.position_of(place, "block_first"), show.position_of(place, "block_last")
        stop = place.block_offset + place.block_bytes - 1
        which = f"{place.block_number} of {place.block_count} ({first} to {last})"
        where = f"bytes {place.block_offset} to {stop}, CRC-32C {place.block_crc32c:08x}"
        pairs.append(("block", f"{which}, {where}"))
    if place.HasField("entry_offset"):
        payload = f"payload of {show.number(place.payload_bytes)} bytes from byte {place.payload_offset} on"
        pairs.append(("entry", f"head at byte {place.entry_offset}, {payload}"))
    pairs.append(("verified", _verified(place)))
    return pairs


def _verified(place: inspect_pb2.ExplainResponse.Place) -> str:
    if not place.verified_ms:
        return "not yet by the scrub"
    said = f"{show.moment(place.verified_ms)} by the scrub, level {place.verified_level}"
    return f"{said}: DAMAGED, {place.verified_flaw}" if place.verified_flaws else f"{said}: sound"


def _grant(found: inspect_pb2.ExplainResponse) -> str:
    """Return the state of the permission to delete the ledger from its source."""
    if not found.HasField("grant"):
        waits = f": {found.grant_waits}" if found.grant_waits else ""
        return f"none: the source may not delete the ledger{waits}"
    one = found.grant
    if one.source_deleted_ms:
        return f"deleted from the source {show.moment(one.source_deleted_ms)}"
    if one.revoked_ms:
        return f"revoked {show.moment(one.revoked_ms)}" + (f": {one.revoked_reason}" if one.revoked_reason else "")
    how = "every byte read" if one.readback else "sizes, index and manifest checked"
    return f"by {one.daemon_id} {show.moment(one.verified_ms)} ({how}), not before {show.moment(one.not_before_ms)}"


def _explained(found: inspect_pb2.ExplainResponse) -> dict[str, object]:
    owner = picked(found, "daemon_id=owner", "address=owner_address", "epoch", kept=("owner_address",))
    return {
        **picked(found, "state", "text", "what_to_do", kept=("text",)),
        "tiers": picked(found, "buffer=in_buffer", "source=in_source", "objects=in_objects"),
        "source_trouble": found.source_trouble or None,
        "place": _place_json(found.place) if found.HasField("place") else None,
        "owner": owner if found.owner else None,
        "ledger": picked(found, "entries=ledger_entries", "deleted_ms=ledger_deleted_ms"),
        "grant": as_json(found.grant) if found.HasField("grant") else None,
        "grant_waits": found.grant_waits or None,
    }


def _place_json(place: inspect_pb2.ExplainResponse.Place) -> dict[str, object]:
    block = {
        **picked(place, "number=block_number", "count=block_count", "offset=block_offset", "bytes=block_bytes"),
        "crc32c": f"{place.block_crc32c:08x}",
        **picked(place, "first=block_first", "last=block_last"),
    }
    entry = ("entry_offset", "payload_offset", "payload_bytes")
    where = ("segment_id", "begin", "end", "offloaded_ms", "bucket", "data_key", "data_bytes")
    verified = picked(place, "verified_ms", "level=verified_level", "flaws=verified_flaws", "flaw=verified_flaw")
    return {
        **picked(place, *where, kept=("segment_id", "offloaded_ms", "bucket", "data_key")),
        "block": block if place.block_number else None,
        **(picked(place, *entry) if place.HasField("entry_offset") else dict.fromkeys(entry)),
        "flaw": show.flaw_json(place.flaw) if place.HasField("flaw") else None,
        "verified": verified if place.verified_ms else None,
    }
