"""docs/failures.md: its index of log events and alerts, made from the page's own sections."""

from __future__ import annotations

import re
from pathlib import Path

from offloaderd.daemon.settings.sections import all_settings
from tools.alerts import alert_names

PAGE = Path(__file__).resolve().parent.parent / "docs" / "failures.md"
BEGIN, END = "<!-- the index: written by `make docs` -->\n", "<!-- end of the index -->\n"
_SYMPTOM = re.compile(r"(?m)^### (?P<title>.+)\n\n- \*\*Seen:\*\* (?P<seen>.+(?:\n  .+)*)")
_EVENT = re.compile(r"`([a-z_]+\.[a-z_]+)`")
_ALERT = re.compile(r"`(Offloaderd[A-Z]\w+)`")
_HEAD = ("| log event or alert | symptom |", "|---|---|")


def anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def index(text: str) -> str:
    """Return a row for each log event and alert that shows a symptom. Raises ValueError for an unknown alert."""
    settings, alerts = {setting.key for setting in all_settings()}, alert_names()
    found: dict[str, list[str]] = {}
    for symptom in _SYMPTOM.finditer(text):
        named = {*_EVENT.findall(symptom["seen"]), *_ALERT.findall(symptom["seen"])} - settings
        for name in named:
            if name.startswith("Offloaderd") and name not in alerts:
                raise ValueError(f"{PAGE}: {symptom['title']}: no alert is called {name}")
            found.setdefault(name, []).append(f"[{symptom['title']}](#{anchor(symptom['title'])})")
    rows = [f"| `{name}` | {'; '.join(titles)} |" for name, titles in sorted(found.items())]
    return "\n".join([*_HEAD, *rows]) + "\n"


def failures_page() -> str:
    """Return the page with a new index."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{index(text)}\n{END}{rest.split(END)[1]}"
