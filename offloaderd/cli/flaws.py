"""How flaws of stored segments are shown: by the daemon's own verify, and by offloadctl's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from offloaderd.rpc.message_json import picked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offloaderd.offload.damage import DamagedLedger
    from offloaderd.rpc.v1 import inspect_pb2
    from offloaderd.upkeep.flaws import Flaw


def write(flaws: Iterable[Flaw | inspect_pb2.Flaw]) -> None:
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


def as_json(flaw: Flaw | inspect_pb2.Flaw) -> dict[str, object]:
    """Return a flaw as JSON shows it."""
    names = ("kind", "problem=is_problem", "key", "offset", "expected", "found", "entries", "segment_id", "what_to_do")
    return picked(flaw, *names, kept=("key", "found"))
