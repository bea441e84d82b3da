"""`offloadctl segments`, `verify` and `explain`: list segments, compare them with the bucket, locate an entry."""

from contextlib import aclosing

import click

from offloaderd.cli import options, show
from offloaderd.cli.options import Session
from offloaderd.cli.program import CORRUPT, FAILED, NOT_FOUND, OK
from offloaderd.cli.progress import Bars
from offloaderd.core.model import Position, TopicName
from offloaderd.protocol.message_json import as_json, picked
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
      offloadctl segments orders --json | jq -r '.segments[].data_key'
    """
    found = session.ask(lambda client: client.segments(topic))
    if found or session.json:
        document = {"topic": str(topic), "segments": [as_json(one, kept=("bucket",)) for one in found]}
        session.tell(document, lambda: show.SEGMENTS.show(found))
    else:
        click.echo(f"{topic} has no segments yet", err=True)


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
      offloadctl verify orders --json | jq -r '.flaws[]? | select(.problem) | "\\(.key) \\(.offset)"'
    """
    return session.run(_verify(session, topic, level))


async def _verify(session: Session, topic: TopicName, level: str) -> int:
    problems = segments = read_bytes = 0
    with Bars() as bars:
        async with (
            session.client() as client,
            aclosing(client.verify(topic, level=level, timeout_s=session.timeout_s)) as events,
        ):
            async for event in events:
                if event.HasField("segment"):
                    found = event.segment
                    flaws = list(found.flaws)
                    bars.show("verifying", f"{found.number} of {found.of} segments", found.number, found.of)
                    if session.json or flaws:
                        bars.clear()
                    if session.json:
                        click.echo(show.json_line(segment_json(found)), nl=False)
                    elif flaws:
                        begin, end = show.position_of(found, "begin"), show.position_of(found, "end")
                        click.echo(f"segment {found.segment_id} ({begin} to {end}):")
                        show.write_flaws(flaws)
                else:
                    bars.clear()
                    flaws = list(event.between.flaws)
                    segments, read_bytes = event.between.segments, event.between.read_bytes
                    if flaws and not session.json:
                        click.echo("between segments:")
                        show.write_flaws(flaws)
                    if session.json:
                        between = [show.flaw_json(flaw) for flaw in flaws]
                        click.echo(show.json_line({"summary": {"segments": segments, "flaws": between}}), nl=False)
                problems += sum(flaw.is_problem for flaw in flaws)
    if not session.json:
        verdict = show.plural(problems, "problem") if problems else "no problem"
        click.echo(f"read {show.size(read_bytes)} of {show.plural(segments, 'segment')}: {verdict}")
    return CORRUPT if problems else OK


def segment_json(found: inspect_pb2.VerifyEvent.Segment) -> dict[str, object]:
    """Return a segment as JSON shows it."""
    facts = picked(found, "segment_id", "begin", "end", "data_bytes", "read_bytes", kept=("segment_id",))
    return {**facts, "flaws": [show.flaw_json(flaw) for flaw in found.flaws]}


THERE = frozenset({"offloaded", "not-offloaded"})
UNREACHABLE = "unreachable"
"""Kind of the flaw that the bucket did not answer."""


@click.command()
@click.argument("topic", type=options.TOPIC)
@click.argument("position", type=options.POSITION)
@options.common
def explain(session: Session, topic: TopicName, position: Position) -> int:
    """Show where an entry is stored: its tiers, object and bytes, and when it was verified; or why there is none.

    Its block is read from the bucket and its checksum compared. Exit code 4 when there is no such entry (deleted, lost,
    not written yet), 5 when the copy in the bucket is damaged, 1 when the bucket does not answer: the
    answer then comes after some seconds, without what only the bucket knows.

    \b
    Examples:
      offloadctl explain orders 12:345
      offloadctl explain orders 12:345 --json | jq -r '.place | "\\(.data_key) \\(.payload_offset) \\(.payload_bytes)"'
    """
    found = session.ask(lambda client: client.explain(topic, position))
    todo = f"\n-> {found.what_to_do}" if found.what_to_do else ""
    session.tell(
        {"topic": str(topic), "position": str(position), **explained(found)},
        f"{position} of {topic}: {found.text}{todo}\n{show.fact_lines(facts(found))}",
    )
    if found.HasField("place") and found.place.HasField("flaw"):
        return FAILED if found.place.flaw.kind == UNREACHABLE else CORRUPT
    return OK if found.state in THERE else NOT_FOUND


def facts(found: inspect_pb2.ExplainResponse) -> list[tuple[str, str]]:
    """Return the known facts, each a name and a value."""
    pairs = [("tiers", tiers(found))]
    if found.HasField("place"):
        pairs += place_facts(found.place)
    pairs.append(("owner", f"{found.owner} ({found.owner_address}), epoch {found.epoch}" if found.owner else "none"))
    ledger = []
    if found.HasField("ledger_entries"):
        ledger.append(f"closed, offloaded to its end ({show.plural(found.ledger_entries, 'entry', 'entries')})")
    if found.ledger_deleted_ms:
        ledger.append(f"marked deleted {show.moment(found.ledger_deleted_ms)}")
    if ledger:
        pairs.append(("ledger", "; ".join(ledger)))
    pairs.append(("grant", grant(found)))
    return pairs


def tiers(found: inspect_pb2.ExplainResponse) -> str:
    """Return the tiers that hold the entry."""
    named = (("buffer", found.in_buffer), ("source", found.in_source), ("bucket", found.in_objects))
    held = [name for name, there in named if there]
    said = ", ".join(held) or "none"
    return said if found.HasField("in_source") else f"{said}; the source cannot be asked: {found.source_trouble}"


def place_facts(place: inspect_pb2.ExplainResponse.Place) -> list[tuple[str, str]]:
    """Return the place of the entry in the bucket."""
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
    pairs.append(("verified", verified(place)))
    return pairs


def verified(place: inspect_pb2.ExplainResponse.Place) -> str:
    """Return when the scrub verified the segment, and the result."""
    if not place.verified_ms:
        return "not yet by the scrub"
    said = f"{show.moment(place.verified_ms)} by the scrub, level {place.verified_level}"
    return f"{said}: DAMAGED, {place.verified_flaw}" if place.verified_flaws else f"{said}: sound"


def grant(found: inspect_pb2.ExplainResponse) -> str:
    """Return the state of the permission to delete the ledger from its source."""
    if not found.HasField("grant"):
        return "none: the source may not delete the ledger"
    one = found.grant
    if one.source_deleted_ms:
        return f"deleted from the source {show.moment(one.source_deleted_ms)}"
    if one.revoked_ms:
        return f"revoked {show.moment(one.revoked_ms)}" + (f": {one.revoked_reason}" if one.revoked_reason else "")
    how = "every byte read" if one.readback else "sizes, index and manifest checked"
    return f"by {one.daemon_id} {show.moment(one.verified_ms)} ({how}), not before {show.moment(one.not_before_ms)}"


def explained(found: inspect_pb2.ExplainResponse) -> dict[str, object]:
    """Return an explanation as JSON shows it."""
    owner = picked(found, "daemon_id=owner", "address=owner_address", "epoch", kept=("owner_address",))
    return {
        **picked(found, "state", "text", "what_to_do", kept=("text",)),
        "tiers": picked(found, "buffer=in_buffer", "source=in_source", "objects=in_objects"),
        "source_trouble": found.source_trouble or None,
        "place": place_json(found.place) if found.HasField("place") else None,
        "owner": owner if found.owner else None,
        "ledger": picked(found, "entries=ledger_entries", "deleted_ms=ledger_deleted_ms"),
        "grant": as_json(found.grant) if found.HasField("grant") else None,
    }


def place_json(place: inspect_pb2.ExplainResponse.Place) -> dict[str, object]:
    """Return a place as JSON shows it."""
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
