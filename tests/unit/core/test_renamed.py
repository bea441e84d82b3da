"""Names that were changed for users: they exist, and the page for upgrades has them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from offloaderd.core.renamed import EVENTS, LOG_MODULES

ROOT = Path(__file__).resolve().parents[3]
TABLES = {"log event": EVENTS, "log module": LOG_MODULES}
SOURCE = "".join(path.read_text() for path in (ROOT / "offloaderd").rglob("*.py") if path.stem != "renamed")


def test_the_page_for_upgrades_has_every_changed_name_and_no_other() -> None:
    """The table in docs/upgrade.md has the rows of the code's tables, in their order."""
    rows = re.findall(r"(?m)^\| ([a-z ]+) \| `([\w.]+)` \| `([\w.]+)` \|$", (ROOT / "docs/upgrade.md").read_text())
    assert rows == [(kind, old, new) for kind, table in TABLES.items() for old, new in table.items()]


@pytest.mark.parametrize("kind", TABLES)
def test_a_name_is_changed_once(kind: str) -> None:
    """No old name is a new one, and no two have become one: an alert on the old name would mean something else."""
    table = TABLES[kind]
    assert not table.keys() & set(table.values())
    assert len(set(table.values())) == len(table)


def test_only_the_new_events_are_logged() -> None:
    """Each new name is an event of the package, and none of the old ones is."""
    assert not [new for new in EVENTS.values() if f'"{new}"' not in SOURCE]
    assert not [old for old in EVENTS if f'"{old}"' in SOURCE]
