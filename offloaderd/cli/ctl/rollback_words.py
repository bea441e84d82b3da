"""How plans and progress of `offloadctl rollback` are said, to people and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.cli import show
from offloaderd.rpc.message_json import picked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.model import TopicName
    from offloaderd.rpc.v1 import rollback_pb2

SHOWN = 20
"""Ledgers that are named in one line."""


def goes(ledger: rollback_pb2.RollbackLedger, to: int | None) -> bool:
    """Whether a ledger would be rewritten."""
    return ledger.standing == "convertible" and (to is None or ledger.ledger_id <= to)


def ledger_table(to: int | None) -> show.Table[rollback_pb2.RollbackLedger]:
    """Return the table of ledgers, of which those up to `to` would be rewritten."""
    return show.Table(
        (">LEDGER", "ledger_id"),
        ("STANDING", "standing"),
        (">ENTRIES", "entries"),
        (">PAYLOAD", "payload_bytes"),
        (">SEGMENTS", "segments"),
        (">REQUESTS", lambda one: show.number(one.requests) if goes(one, to) else "-"),
        (">TIME", lambda one: show.age(one.seconds) if goes(one, to) else "-"),
        ("NOTE", lambda one: note(one, to)),
    )


def note(ledger: rollback_pb2.RollbackLedger, to: int | None) -> str:
    """Return what else is worth knowing of a ledger."""
    if ledger.segment_id:
        return f"{ledger.segment_id} by {ledger.driver}"
    return "behind --to" if ledger.standing == "convertible" and not goes(ledger, to) else ledger.why


def plan_lines(one: rollback_pb2.PlanRollbackResponse, to: int | None) -> list[str]:
    """Return in words what a stock broker could read of a topic, and what is to be done besides."""
    wholes = [ledger for ledger in one.ledgers if ledger.standing == "whole"]
    going = [ledger for ledger in one.ledgers if goes(ledger, to)]
    staying = [ledger.ledger_id for ledger in one.ledgers if ledger.standing != "whole" and not goes(ledger, to)]
    size = show.size(sum(ledger.payload_bytes for ledger in going))
    lines = [
        f"{one.topic}: a stock broker could read {show.number(len(wholes))} of "
        f"{show.plural(len(one.ledgers), 'ledger')} in the tier, and {show.number(len(wholes) + len(going))} after it"
    ]
    if going:
        how = "as measured here" if one.measured else "a guess, nothing was measured yet"
        lines.append(
            f"to rewrite: {show.plural(len(going), 'ledger')}, {size}, about "
            f"{show.plural(sum(ledger.requests for ledger in going), 'request')} and "
            f"{show.age(sum(ledger.seconds for ledger in going))} at {show.size(int(one.bytes_per_s))}/s ({how})"
        )
    if staying:
        lines.append(f"stay in segments, which a stock broker cannot read: ledger {named(staying)}")
    lines += [f"lost, in no ledger: entries {loss}" for loss in one.losses]
    if one.HasField("order"):
        lines.append(order_line(one.order))
    return lines + besides(one)


def named(ledger_ids: Sequence[int]) -> str:
    """Return ledgers in one line."""
    more = f" and {show.number(len(ledger_ids) - SHOWN)} more" if len(ledger_ids) > SHOWN else ""
    return ", ".join(map(str, ledger_ids[:SHOWN])) + more


def besides(one: rollback_pb2.PlanRollbackResponse) -> list[str]:
    """Return what remains to be done outside of a conversion."""
    lines = []
    if not one.enabled:
        lines.append("the topic is not enabled: offloadctl topics enable it, or nobody can rewrite it")
    elif one.method == "streaming":
        lines.append("its method is streaming: what comes later will lie in segments again; set another method first")
    if one.unfinished:
        lines.append(f"its history {one.unfinished} is still being offloaded; plan again when that is done")
    if one.prefix:
        lines.append(
            f"the keys begin with {one.prefix!r}, which a stock broker does not put in front: copy the objects"
        )
    lines.append(
        "nothing here writes below /managed-ledgers: for a broker to find the objects, the topic's node there has to "
        "name each ledger's uuid and driver in its offload context (--json lists them)"
    )
    return lines


def order_line(order: rollback_pb2.RollbackOrder) -> str:
    """Return in words how an order stands."""
    what = f"ordered up to ledger {order.to_ledger_id} at {show.moment(order.ordered_ms)}"
    if not order.ended_ms:
        return f"{what}, and being carried out"
    end = "stopped" if order.stopped else "ended"
    failed = f"; {show.plural(len(order.failures), 'ledger')} could not be rewritten" if order.failures else ""
    return f"{what}, {end} at {show.moment(order.ended_ms)}{failed}"


def plan_json(one: rollback_pb2.PlanRollbackResponse, to: int | None) -> dict[str, object]:
    """Return a plan as JSON shows it; what is not known, or does not apply, is null."""

    def ledger_json(ledger: rollback_pb2.RollbackLedger) -> dict[str, object]:
        effort = picked(ledger, "requests", "seconds") if goes(ledger, to) else {"requests": None, "seconds": None}
        return {
            **picked(ledger, "ledger_id", "standing"),
            "converts": goes(ledger, to),
            **picked(ledger, "why", "entries", "payload_bytes", "segments"),
            **effort,
            **picked(ledger, "segment_id", "driver"),
        }

    return {
        "topic": one.topic,
        "ledgers": [ledger_json(ledger) for ledger in one.ledgers],
        **picked(one, "losses", "method", "enabled", "prefix", kept=("method", "prefix")),
        "bytes_per_s": round(one.bytes_per_s),
        **picked(one, "measured", "history_unfinished=unfinished", "order"),
    }


def progress_line(report: rollback_pb2.RollbackProgress) -> str:
    """Return progress in one line."""
    done = f"{show.number(report.done)} of {show.plural(report.done + report.left, 'ledger')} rewritten"
    if report.HasField("ledger_id"):
        done += f"; ledger {report.ledger_id}: {report.phase}, {show.size(report.ledger_bytes)}"
    return f"{done}; it does not move: {report.error}" if report.error else done


def result_lines(topic: TopicName, last: rollback_pb2.RollbackProgress) -> list[str]:
    """Return in words what came of an order."""
    end = "stopped" if last.order.stopped else "done"
    lines = [f"{end}: {show.plural(last.done, 'ledger')} of {topic} rewritten, {show.size(last.done_bytes)}"]
    lines += [f"ledger {one.ledger_id} could not be: {one.reason}" for one in last.order.failures]
    return lines
