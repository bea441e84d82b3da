"""Segments, and what is wrong with them, as all commands show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from offloaderd.cli import show
from offloaderd.protocol.message_json import picked

if TYPE_CHECKING:
    from offloaderd.protocol.v1 import admin_pb2, inspect_pb2
    from offloaderd.upkeep.grants.revoke_on_damage import DamagedLedger
    from offloaderd.upkeep.verify.flaws import Flaw


def status(segment: admin_pb2.Segment) -> str:
    """Return the status word, with the state of a segment that is still open; an older daemon does not tell it."""
    return f"{segment.status}, {segment.state}" if segment.state and not segment.HasField("end") else segment.status


TABLE: show.Table[admin_pb2.Segment] = show.Table(
    ("STATUS", status),
    ("METHOD", "method"),
    ("WRITER", "writer"),
    ("BEGIN", "begin"),
    ("END", lambda one: show.position_of(one, "end") or "open"),
    (">ENTRIES", "entries"),
    (">PAYLOAD", "payload_bytes"),
    (">OBJECT", lambda one: show.size(one.object_bytes) if one.object_bytes else "-"),
    ("OFFLOADED AT (UTC)", "offloaded_ms"),
    ("DATA OBJECT", lambda one: f"{one.bucket}/{one.data_key}"),
)


def write_flaws(flaws: Iterable[Flaw | inspect_pb2.Flaw]) -> None:
    """Write flaws with their offsets to stdout: two lines each, what is wrong and what to do."""
    for flaw in flaws:
        kind, offset = flaw.kind.upper() if flaw.is_problem else flaw.kind, picked(flaw, "offset")["offset"]
        where = f"{flaw.key} at byte {offset}" if offset is not None else flaw.key
        said = f"expected {flaw.expected}, found {flaw.found}" if flaw.expected else flaw.found
        entries = f"; entries {flaw.entries}" if flaw.entries else ""
        click.echo(f"  {kind:<12} {where}: {said}{entries}")
        if flaw.what_to_do:
            click.echo(f"  {'':<12} -> {flaw.what_to_do}")


def write_ledgers(ledgers: Iterable[DamagedLedger]) -> None:
    """Write what became of ledgers whose copies are damaged, as flaws are written."""
    for one in ledgers:
        click.echo(f"  {one.fate.upper():<12} ledger {one.ledger_id}: {one.text}")
        click.echo(f"  {'':<12} -> {one.what_to_do}")


def ledger_as_json(one: DamagedLedger) -> dict[str, object]:
    """Return what became of a ledger as JSON shows it."""
    return picked(one, "topic", "ledger_id", "fate", "text", "what_to_do", kept=("text", "what_to_do"))


def flaw_as_json(flaw: Flaw | inspect_pb2.Flaw) -> dict[str, object]:
    """Return a flaw as JSON shows it."""
    names = ("kind", "problem=is_problem", "key", "offset", "expected", "found", "entries", "segment_id", "what_to_do")
    return picked(flaw, *names, kept=("key", "found"))
