"""docs/alerts.md from deploy/prometheus/alerts.rules.yml: meaning, checks and measures of each alert."""

from __future__ import annotations

from pathlib import Path

import yaml

RULES = Path(__file__).resolve().parent.parent / "deploy" / "prometheus" / "alerts.rules.yml"

HEAD = """\
# Alerts

Generated from `deploy/prometheus/alerts.rules.yml` by `make docs`. page: act now; ticket: in working hours. Names
with a colon are recorded by `recording.rules.yml`; your own values are in `site.rules.yml`, both beside it. Failures
by symptom and log event: [failures.md](failures.md). Setting this up: [monitoring.md](monitoring.md).
"""

PARTS = (("It means", "means"), ("Look at", "look"), ("Do", "do"))


def alerts_page() -> str:
    """A section for each alert, whose heading is what its runbook_url leads to."""
    lines = [HEAD]
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            since = f", for {rule['for']}" if "for" in rule else ""
            lines += [f"## {rule['alert']}", "", f"{rule['labels']['severity']}{since}, when", ""]
            lines += ["```", rule["expr"].strip(), "```", ""]
            lines += [f"- **{title}:** {rule['annotations'][part]}" for title, part in PARTS]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def alert_names() -> set[str]:
    """Return the names of all alerts."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}
