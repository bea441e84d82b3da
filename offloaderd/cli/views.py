"""Check results, segments, flaws and damaged ledgers, as both commands show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from offloaderd.cli import show
from offloaderd.cli.program import FAILED, OK
from offloaderd.protocol.message_json import picked

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from offloaderd.daemon.doctor.finding import CheckResult
    from offloaderd.protocol.v1 import admin_pb2, doctor_pb2, inspect_pb2
    from offloaderd.upkeep.grants.revoke_on_damage import DamagedLedger
    from offloaderd.upkeep.verify.flaws import Flaw

    Result = CheckResult | doctor_pb2.CheckResult

NAME_WIDTH = 26
STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
NOUNS = (("ok", "ok", "ok"), ("warn", "warning", "warnings"), ("fail", "failed", "failed"), ("skipped",) * 3)


async def shown(results: AsyncGenerator[Result, None], *, as_json: bool) -> int:
    """Show an examination; returns the exit code: 1 when anything failed."""
    seen: list[Result] = []
    async for result in results:
        seen.append(result)
        if not as_json:
            click.echo(line(result))
    failed = any(result.verdict == "fail" for result in seen)
    if as_json:
        show.document({"passed": not failed, "checks": [document(result) for result in seen]})
    else:
        click.echo()
        click.echo(summary(seen))
    return FAILED if failed else OK


def line(result: Result) -> str:
    """Return a result in one line that ends with its hint."""
    verdict = f"{result.verdict.upper() if result.verdict == 'fail' else result.verdict:<8}"
    todo = f" -> {result.what_to_do}" if result.what_to_do else ""
    return f"{click.style(verdict, STYLES.get(result.verdict))} {result.name:<{NAME_WIDTH}} {result.found}{todo}"


def summary(results: Sequence[Result]) -> str:
    """Return the number of results of each verdict, in one line."""
    counts = Counter(result.verdict for result in results)
    parts = [f"{counts[kind]} {one if counts[kind] == 1 else many}" for kind, one, many in NOUNS if counts[kind]]
    return f"{', '.join(parts)} in {show.age(sum(result.seconds for result in results))}"


def document(result: Result) -> dict[str, object]:
    """Return a result as JSON shows it."""
    return picked(result, "name", "verdict", "found", "what_to_do", "seconds", kept=("found",))


def status(segment: admin_pb2.Segment) -> str:
    """Return the status, with the state of an open segment, which older daemons do not send."""
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
    """Write flaws with their offsets to stdout: a line for the flaw and one for its hint."""
    for flaw in flaws:
        kind, offset = flaw.kind.upper() if flaw.is_problem else flaw.kind, picked(flaw, "offset")["offset"]
        where = f"{flaw.key} at byte {offset}" if offset is not None else flaw.key
        said = f"expected {flaw.expected}, found {flaw.found}" if flaw.expected else flaw.found
        entries = f"; entries {flaw.entries}" if flaw.entries else ""
        click.echo(f"  {kind:<12} {where}: {said}{entries}")
        if flaw.what_to_do:
            click.echo(f"  {'':<12} -> {flaw.what_to_do}")


def write_ledgers(ledgers: Iterable[DamagedLedger]) -> None:
    """Write the fates of ledgers with damaged copies, in the form of flaws."""
    for one in ledgers:
        click.echo(f"  {one.fate.upper():<12} ledger {one.ledger_id}: {one.text}")
        click.echo(f"  {'':<12} -> {one.what_to_do}")


def ledger_as_json(one: DamagedLedger) -> dict[str, object]:
    """Return the fate of a ledger as JSON shows it."""
    return picked(one, "topic", "ledger_id", "fate", "text", "what_to_do", kept=("text", "what_to_do"))


def flaw_as_json(flaw: Flaw | inspect_pb2.Flaw) -> dict[str, object]:
    """Return a flaw as JSON shows it."""
    names = ("kind", "problem=is_problem", "key", "offset", "expected", "found", "entries", "segment_id", "what_to_do")
    return picked(flaw, *names, kept=("key", "found"))
