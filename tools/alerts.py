"""docs/alerts.md from deploy/prometheus/alerts.rules.yml: meaning, checks, measures and failures of each alert."""

from __future__ import annotations

import yaml

from tools.failures import RULES, symptoms

HEAD = """\
# Alerts

Generated from `deploy/prometheus/alerts.rules.yml` by `make docs`. page: act now; ticket: in working hours. Names
with a colon are recorded by `recording.rules.yml`; your own values are in `site.rules.yml`, both beside it. Failures
by symptom and log event: [failures.md](failures.md). Setting this up: [monitoring.md](monitoring.md).
"""

PARTS = (("It means", "means"), ("Look at", "look"), ("Do", "do"))


def alerts_page() -> str:
    """A section for each alert, whose heading is what its runbook_url leads to."""
    lines, failures = [HEAD], symptoms()
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            since = f", for {rule['for']}" if "for" in rule else ""
            lines += [f"## {rule['alert']}", "", f"{rule['labels']['severity']}{since}, when", ""]
            lines += ["```", rule["expr"].strip(), "```", ""]
            lines += [f"- **{title}:** {rule['annotations'][part]}" for title, part in PARTS]
            if shown := failures.get(rule["alert"]):
                lines.append("- **Failures:** " + "; ".join(f"[{title}](failures.md#{at})" for title, at in shown))
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"
