"""How flaws of stored segments are shown: by the daemon's own verify, and by offloadctl's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offloaderd.offload.damage import DamagedLedger


class FlawLike(Protocol):
    """What is shown of a flaw; text fields are empty where there is nothing to say."""

    @property
    def kind(self) -> str:
        """What sort of flaw."""
        ...

    @property
    def key(self) -> str:
        """The object."""
        ...

    @property
    def entries(self) -> str:
        """Which entries are concerned."""
        ...

    @property
    def expected(self) -> str:
        """What should be there."""
        ...

    @property
    def found(self) -> str:
        """What is there."""
        ...

    @property
    def what_to_do(self) -> str:
        """What an operator can do."""
        ...

    @property
    def is_problem(self) -> bool:
        """Whether something is wrong."""
        ...


def write(flaws: Iterable[tuple[FlawLike, int | None]]) -> None:
    """Write flaws with their offsets to stdout: two lines each, what is wrong and what to do."""
    for flaw, offset in flaws:
        kind = flaw.kind.upper() if flaw.is_problem else flaw.kind
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
    return {
        "topic": str(one.topic),
        "ledger_id": one.ledger_id,
        "fate": one.fate,
        "text": one.text,
        "what_to_do": one.what_to_do,
    }


def as_json(flaw: FlawLike, offset: int | None, segment_id: str) -> dict[str, object]:
    """Return a flaw as JSON shows it."""
    return {
        "kind": flaw.kind,
        "problem": flaw.is_problem,
        "key": flaw.key,
        "offset": offset,
        "expected": flaw.expected or None,
        "found": flaw.found,
        "entries": flaw.entries or None,
        "segment_id": segment_id or None,
        "what_to_do": flaw.what_to_do or None,
    }
