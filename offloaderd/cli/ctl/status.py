"""`offloadctl status`: the daemon and its topics at a glance, or one topic in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from offloaderd.cli import show
from offloaderd.cli.ctl import options

if TYPE_CHECKING:
    from offloaderd.cli.ctl.options import Session
    from offloaderd.model import TopicName
    from offloaderd.rpc.v1 import admin_pb2, history_pb2, read_pb2

POSITIONS = ("first", "confirmed", "offloaded", "buffered_first", "buffered_last")


@click.command(short_help="Show the daemon and its topics, or one topic.")
@click.argument("topic", type=options.TOPIC, required=False)
@options.common
def status(session: Session, topic: TopicName | None) -> int:
    """Show the daemon, what it depends on, and how far each topic is; or one topic with its positions.

    \b
    Examples:
      offloadctl status
      offloadctl status orders
      offloadctl status orders --json | jq '.topics[0].lag_entries'
    """
    return session.run(_status(session, topic))


async def _status(session: Session, topic: TopicName | None) -> None:
    async with session.client() as client:
        found = await client.status(topic)
        positions = await client.last_positions(topic) if topic is not None else None
    if session.json:
        show.document(as_json(found, positions))
        return
    show.facts(daemon_facts(found))
    if topic is not None:
        for one in found.topics:
            click.echo()
            show.facts(topic_facts(one, positions))
    elif found.topics:
        click.echo()
        show.table(COLUMNS, [row(one) for one in found.topics])
        for one in found.topics:
            if one.stalled_reason:
                click.echo(f"{one.topic}: {one.stalled_reason}")
            if one.history.live_waits:
                click.echo(f"{one.topic}: {history_text(one.history)}")


COLUMNS = ("TOPIC", "STATE", "CONFIRMED", "OFFLOADED", ">LAG", ">LAG BYTES", ">LAG AGE", ">OPEN SEGMENT", ">SEGMENTS")


def row(one: admin_pb2.TopicStatus) -> tuple[str, ...]:
    """Return a topic's line in the table."""
    return (
        one.topic,
        one.state,
        show.position_of(one, "confirmed") or "-",
        show.position_of(one, "offloaded") or "-",
        show.number(one.lag_entries),
        show.size(one.lag_bytes),
        show.age(one.lag_seconds) if one.lag_entries else "-",
        show.size(one.open_segment_bytes) if one.open_segment_id else "-",
        show.number(one.segments_committed),
    )


def daemon_facts(found: admin_pb2.StatusResponse) -> list[tuple[str, str]]:
    """Return the lines about the daemon."""
    used, budget = show.size(found.memory_used_bytes), show.size(found.memory_budget_bytes)
    lines = [
        ("daemon", f"{found.daemon_id} {found.version}, {found.state} since {show.moment(found.started_ms)} UTC"),
        ("memory", f"{used} of {budget}"),
    ]
    lines += [(one.name, "up" if one.up else f"DOWN: {one.message or 'no reason given'}") for one in found.dependencies]
    return lines


def topic_facts(one: admin_pb2.TopicStatus, positions: read_pb2.LastPositionsResponse | None) -> list[tuple[str, str]]:
    """Return the lines about one topic."""
    lag = "none"
    if one.lag_entries:
        entries = show.plural(one.lag_entries, "entry", "entries")
        lag = f"{entries}, {show.size(one.lag_bytes)}, oldest {show.age(one.lag_seconds)} ago"
    segment = "none"
    if one.open_segment_id:
        entries = show.plural(one.open_segment_entries, "entry", "entries")
        continued = ", continued" if one.open_segment_continued else ""
        segment = (
            f"{one.open_segment_id} ({entries}, {show.size(one.open_segment_bytes)}, "
            f"{show.age(one.open_segment_age_s)} old{continued})"
        )
    lines = [
        ("topic", one.topic),
        ("state", one.state + (f": {one.stalled_reason}" if one.stalled_reason else "")),
        ("owner", f"{one.owner or '-'} (epoch {one.epoch})" + (f": {one.placement}" if one.placement else "")),
        *([("PAUSED", f"since {show.moment(one.paused_ms)} UTC by {one.paused_by}")] if one.paused_ms else []),
        *outage_facts(one),
        ("lag", lag),
        ("open segment", segment),
        ("buffer", show.size(one.buffer_bytes)),
        ("segments", show.number(one.segments_committed)),
    ]
    if one.HasField("history"):
        lines.append(("history", history_text(one.history)))
    if one.edge:
        lines.append(("live edge", edge_text(one)))
    lines += [("LOST", loss_text(loss)) for loss in one.losses]
    if positions is not None:
        labels = ("oldest", "confirmed", "offloaded", "buffered from", "buffered to")
        lines += [
            (label, show.position_of(positions, field) or "-") for label, field in zip(labels, POSITIONS, strict=True)
        ]
    return lines


def outage_facts(one: admin_pb2.TopicStatus) -> list[tuple[str, str]]:
    """Say since when a topic stalls, and what is not protected meanwhile, if anything."""
    lines = []
    if one.stalled_since_ms:
        since = show.moment(one.stalled_since_ms)
        lines.append(("stalled since", f"{since} UTC ({one.stalled_class or 'other'}); outage policy: {one.outage}"))
    if one.unprotected_since_ms:
        entries, size = show.plural(one.unprotected_entries, "entry", "entries"), show.size(one.unprotected_bytes)
        spilled = f", {show.size(one.spilled_bytes)} of it on this daemon's disk" if one.spilled_bytes else ""
        since = show.moment(one.unprotected_since_ms)
        lines.append(("NOT PROTECTED", f"{entries}, {size}{spilled}, since {since} UTC"))
    return lines


def history_text(one: history_pb2.HistorySummary) -> str:
    """Say what is left of a topic's history, and what that means for new entries."""
    left = f"{show.plural(one.left_entries, 'entry', 'entries')}, {show.size(one.left_bytes)} left"
    whose = "for the daemon" if one.worker == "daemon" else "for a backfill job"
    live = "WAIT until it is done" if one.live_waits else "are offloaded beside it"
    text = f"{left} {whose} before {show.position_of(one, 'boundary')}; new entries {live}"
    return f"{text}; hindered: {one.error}" if one.error else text


def history_json(one: history_pb2.HistorySummary) -> dict[str, object]:
    """Return what is left of a topic's history as JSON shows it."""
    return {
        "boundary": show.position_of(one, "boundary"),
        "worker": one.worker,
        "left_entries": one.left_entries,
        "left_bytes": one.left_bytes,
        "live_waits": one.live_waits,
        "error": one.error or None,
    }


def edge_text(one: admin_pb2.TopicStatus) -> str:
    """Say how the newest entry is known, and what is hidden behind it."""
    known = {
        "exact": "exact",
        "next write": "known from the entries alone: what a quiet writer had in flight shows with its next entry",
        "explicit LAC": "told by the writer at an interval (explicit LAC)",
        "admin API": "told by the broker's admin API when the topic went quiet",
    }.get(one.edge, one.edge)
    hidden = f"; {show.plural(one.hidden_entries, 'entry', 'entries')} not known to be confirmed"
    return f"{known}{hidden if one.hidden_entries else ''}; looked {show.age(one.looked_age_s)} ago"


def loss_text(loss: admin_pb2.LostRange) -> str:
    """Say which entries were gone before they could be offloaded."""
    after = show.position_of(loss, "after")
    lost = show.plural(loss.entries, "entry", "entries") if loss.entries else "possibly entries"
    where = f"after {after} and before" if after else "before"
    return f"{lost} {where} {show.position_of(loss, 'before')}, noticed {show.moment(loss.noticed_ms)} UTC"


def as_json(found: admin_pb2.StatusResponse, positions: read_pb2.LastPositionsResponse | None) -> dict[str, object]:
    """Return the status as JSON shows it; `positions` is there for a single topic."""
    result: dict[str, object] = {
        "daemon": {
            "id": found.daemon_id,
            "version": found.version,
            "state": found.state,
            "started_ms": found.started_ms,
            "memory_used_bytes": found.memory_used_bytes,
            "memory_budget_bytes": found.memory_budget_bytes,
            "dependencies": [
                {"name": one.name, "up": one.up, "message": one.message or None} for one in found.dependencies
            ],
        },
        "topics": [topic_json(one) for one in found.topics],
    }
    if positions is not None:
        result["positions"] = {field: show.position_of(positions, field) for field in POSITIONS}
    return result


def topic_json(one: admin_pb2.TopicStatus) -> dict[str, object]:
    """Return a topic's status as JSON shows it; what does not exist is null."""
    opened = one.open_segment_id or None
    return {
        "topic": one.topic,
        "state": one.state,
        "stalled_reason": one.stalled_reason or None,
        "stalled_class": one.stalled_class or None,
        "stalled_since_ms": one.stalled_since_ms or None,
        "paused": {"since_ms": one.paused_ms, "by": one.paused_by} if one.paused_ms else None,
        "outage": one.outage or None,
        "unprotected": {
            "entries": one.unprotected_entries,
            "bytes": one.unprotected_bytes,
            "since_ms": one.unprotected_since_ms,
            "spilled_entries": one.spilled_entries,
            "spilled_bytes": one.spilled_bytes,
        }
        if one.unprotected_since_ms
        else None,
        "owner": one.owner or None,
        "placement": one.placement or None,
        "epoch": one.epoch,
        "confirmed": show.position_of(one, "confirmed"),
        "offloaded": show.position_of(one, "offloaded"),
        "history": history_json(one.history) if one.HasField("history") else None,
        "lag_entries": one.lag_entries,
        "lag_bytes": one.lag_bytes,
        "lag_seconds": one.lag_seconds,
        "open_segment": opened
        and {
            "segment_id": one.open_segment_id,
            "entries": one.open_segment_entries,
            "bytes": one.open_segment_bytes,
            "age_s": one.open_segment_age_s,
            "continued": one.open_segment_continued,
        },
        "buffer_bytes": one.buffer_bytes,
        "segments_committed": one.segments_committed,
        "edge": one.edge or None,
        "hidden_entries": one.hidden_entries,
        "looked_age_s": one.looked_age_s,
        "losses": [
            {
                "after": show.position_of(loss, "after"),
                "before": show.position_of(loss, "before"),
                "entries": loss.entries or None,
                "noticed_ms": loss.noticed_ms,
            }
            for loss in one.losses
        ],
    }
