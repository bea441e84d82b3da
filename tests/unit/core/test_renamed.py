"""Names that were changed for users: they exist, and the page for upgrades has them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.renamed import EVENTS, LOG_MODULES, METRICS, SETTINGS
from offloaderd.daemon.settings.sections import all_settings

ROOT = Path(__file__).resolve().parents[3]
TABLES = {"log event": EVENTS, "log module": LOG_MODULES, "metric": METRICS, "setting": SETTINGS}
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


def test_a_renamed_metric_is_exposed_under_both_names() -> None:
    """The same samples with the same labels, and a help text that leads to the new name; by topic and on all pages."""
    metrics = Metrics()
    metrics.segments_resumed.inc(3)
    metrics.trash_blocked.labels(topic="t").set(2)
    metrics.grpc_identity_highest.labels(of="calls").set(4)
    text = generate_latest(metrics.view()).decode()
    for line in (
        "offloaderd_segments_resumed_total 3.0",
        "offloaderd_segments_continued_total 3.0",
        "# HELP offloaderd_segments_continued_total Deprecated: now offloaderd_segments_resumed_total.",
        "# TYPE offloaderd_segments_continued_total counter",
        'offloaderd_trash_left{topic="t"} 2.0',
        'offloaderd_grpc_identity_most{of="calls"} 4.0',
    ):
        assert line in text.splitlines()
    by_topic = generate_latest(metrics.view(topics=True)).decode()
    assert "offloaderd_trash_left{" in by_topic
    assert "segments_continued" not in by_topic


def test_every_old_metric_is_exposed_once_and_every_new_one_exists() -> None:
    """No metric of the present has an old name."""
    exposed = re.findall(r"(?m)^# TYPE (\S+)", generate_latest(Metrics().view()).decode())
    documented = {metric.name for metric in Metrics().documented()}
    assert [exposed.count(name) for name in (*METRICS, *METRICS.values())] == [1] * 2 * len(METRICS)
    assert documented >= set(METRICS.values())
    assert not documented & METRICS.keys()


def test_every_new_setting_exists_and_no_old_one() -> None:
    """The values of both are the same field."""
    settings = {setting.key for setting in all_settings()}
    assert settings >= set(SETTINGS.values())
    assert not settings & SETTINGS.keys()


def test_no_page_and_no_file_to_deploy_has_an_old_name() -> None:
    """Of the pages, docs/upgrade.md alone has them."""
    old = re.compile(r"(?<![\w.:])(?:" + "|".join(map(re.escape, [*EVENTS, *METRICS, *SETTINGS])) + r")(?!\w|\.\w)")
    folders = ("docs", "deploy", "configs", "tools", "bench")
    found = {
        str(path.relative_to(ROOT)): names
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".md", ".yml", ".yaml", ".json", ".toml", ".py", ".sh", ".service"}
        and path.name != "upgrade.md"
        and (names := sorted(set(old.findall(path.read_text(encoding="utf-8")))))
    }
    assert found == {}
