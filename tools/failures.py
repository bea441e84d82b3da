"""docs/failures.md: its index of log events and alerts, made from the page's own sections."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from offloaderd.daemon.settings.sections import all_settings

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "failures.md"
RULES = ROOT / "deploy" / "prometheus" / "alerts.rules.yml"
BEGIN, END = "<!-- the index: written by `make docs` -->\n", "<!-- end of the index -->\n"
_SYMPTOM = re.compile(r"(?m)^### (?P<title>.+)\n\n(?P<seen>- \*\*Seen:\*\* .+(?:\n(?:  |- ).+)*)")
_EVENT = re.compile(r"`([a-z0-9_]+\.[a-z_]+)`")
_ALERT = re.compile(r"`(Offloaderd[A-Z]\w+)`")
_FOREIGN = {"jute.maxbuffer", "broker.conf"}  # ZooKeeper's, and a file of Pulsar's
OTHERS = "Other log events"
_HEAD = ("| log event or alert | symptom |", "|---|---|")


def anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def symptoms() -> dict[str, list[tuple[str, str]]]:
    """Return by log event and alert the headings that it leads to, with their anchors. Raises ValueError."""
    text, settings = PAGE.read_text(encoding="utf-8"), {setting.key for setting in all_settings()} | _FOREIGN
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    found: dict[str, list[tuple[str, str]]] = {}
    for symptom in _SYMPTOM.finditer(text):
        named = {*_EVENT.findall(symptom["seen"]), *_ALERT.findall(symptom["seen"])} - settings
        for name in named:
            if name.startswith("Offloaderd") and name not in alerts:
                raise ValueError(f"{PAGE}: {symptom['title']}: no alert is called {name}")
            found.setdefault(name, []).append((symptom["title"], anchor(symptom["title"])))
    others = text.partition(f"## {OTHERS}")[2].partition(BEGIN)[0]
    for name in sorted({*_EVENT.findall(others)} - settings - found.keys()):
        found.setdefault(name, []).append((OTHERS, anchor(OTHERS)))
    return found


def index() -> str:
    """Return a row for each log event and alert, which has its name as an anchor."""
    rows = [
        f'| <a id="{name}"></a>`{name}` | {"; ".join(f"[{title}](#{at})" for title, at in titles)} |'
        for name, titles in sorted(symptoms().items())
    ]
    return "\n".join([*_HEAD, *rows]) + "\n"


def failures_page() -> str:
    """Return the page with a new index."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n{index()}\n{END}{rest.split(END)[1]}"
