"""docs/decisions/README.md: the list of decisions, from the head of each page."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "decisions"
_HEAD = re.compile(
    r"# (?P<number>\d{4})\. (?P<title>.+)\n\n- Date: (?P<date>\d{4}-\d\d-\d\d)\n"
    r"- Status: (?P<status>accepted|rejected|superseded by \d{4})\n\n"
)
_INTRO = """\
# Decisions

Generated from the pages by `make docs`. A page has a number, a date, a status (accepted, rejected, superseded by a
later number), the decision, its reasons, and the designs that were rejected. A decision that changes gets a new page;
the old page keeps its text and names the new number as its status.

| number | decision | date | status |
|---|---|---|---|
"""


def decisions_page() -> str:
    """Return a row for each decision. Raises ValueError for a page without number, date or status, or out of order."""
    rows = []
    for expected, page in enumerate(sorted(FOLDER.glob("[0-9]*.md")), start=1):
        found = _HEAD.match(page.read_text(encoding="utf-8"))
        if found is None or int(found["number"]) != expected or not page.name.startswith(f"{found['number']}-"):
            raise ValueError(f"{page}: it has to begin with `# {expected:04}. TITLE`, its date and its status")
        rows.append(f"| {found['number']} | [{found['title']}]({page.name}) | {found['date']} | {found['status']} |")
    return _INTRO + "\n".join(rows) + "\n"
