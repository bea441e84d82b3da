"""Rules, dashboard and their pages: names are exported, labels exist, alerts are told and tested."""

from __future__ import annotations

import re

import pytest
import yaml
from prometheus_client import generate_latest

from offloaderd.core.metrics.families import STORE_CODES
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.metrics.processes import all_documented
from offloaderd.core.model import TopicName
from offloaderd.core.renamed import METRICS
from tests.unit.deploy.expressions import PROMETHEUS, ROOT, asked_by, drawn, expressions, panels, plain, rules

FOREIGN = {"up", "ALERTS", "process_resident_memory_bytes", "process_cpu_seconds_total"}
"""What Prometheus itself, or the client library, says of a process."""
ADDED = {"job", "instance", "le", "process"}
"""Labels that scraping, histograms and several processes add."""
EXPORTED = {metric.name: metric for metric in all_documented()}
RECORDED = {rule["record"] for rule in rules() if "record" in rule}
ALERTS = [rule for rule in rules() if "alert" in rule]
SERIES_A_TOPIC_MAX = 30
SERIES_WITHOUT_TOPICS_MAX = 1000
PARTS = {"summary", "means", "look", "do", "runbook_url"}


def test_every_name_that_is_asked_for_is_exported_or_recorded() -> None:
    """A panel or an alert over a name that nobody exports stays empty and silent for ever."""
    asked = [one for where, expression in expressions() for one in asked_by(where, expression)]
    assert len(asked) > 120
    assert {one.metric for one in asked} & FOREIGN == FOREIGN
    known = EXPORTED.keys() | RECORDED | FOREIGN
    assert not [(one.where, one.metric) for one in asked if plain(one.metric) not in known and one.metric not in known]


def test_every_label_that_is_asked_for_exists_with_such_values() -> None:
    """A matcher over a label or value that does not exist matches nothing, which looks like nothing wrong."""
    checked = 0
    for where, expression in expressions():
        for one in asked_by(where, expression):
            metric = EXPORTED.get(plain(one.metric)) or EXPORTED.get(one.metric)
            if metric is None:
                continue
            for label, operator, value in one.matchers:
                assert label in metric.labels or label in ADDED, f"{where}: {one.metric} has no label {label}"
                values = STORE_CODES if metric.name == "offloaderd_objects_requests_total" and label == "code" else ()
                closed = metric.labels.get(label) or values
                alternatives = value.split("|") if operator.startswith(("Re", "NotRe")) else [re.escape(value)]
                for wanted in alternatives if closed and value != ".*" else ():
                    checked += 1
                    assert any(re.fullmatch(wanted, known) for known in closed), f"{where}: {label}={wanted} is none"
    assert checked > 20


def test_every_recorded_name_is_asked_for() -> None:
    """What nobody looks at is not computed every quarter of a minute."""
    asked = {one.metric for where, expression in expressions() for one in asked_by(where, expression)}
    assert not RECORDED - asked


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_says_what_to_do(rule: dict[str, object]) -> None:
    """Who is woken at night gets what it means, where to look, what to do, and a page that has the same."""
    name, notes = str(rule["alert"]), rule["annotations"]
    assert isinstance(notes, dict)
    assert notes.keys() == PARTS
    assert all(str(text).strip() for text in notes.values())
    assert rule["labels"] in ({"severity": "page"}, {"severity": "ticket"})
    page, _, heading = str(notes["runbook_url"]).partition("#")
    assert heading == name.lower()
    assert f"## {name}\n" in (ROOT / page).read_text()


def test_every_alert_is_seen_to_fire_by_promtool() -> None:
    """The stories in deploy/prometheus/tests know each alert, and no other."""
    stories = [yaml.safe_load(path.read_text()) for path in sorted((PROMETHEUS / "tests").glob("*.test.yml"))]
    fired = {
        name
        for story in stories
        for test in story["tests"]
        for check in test["promql_expr_test"]
        for sample in check["exp_samples"]
        for name in re.findall(r'alertname="(\w+)"', sample["labels"])
    }
    assert fired == {str(rule["alert"]) for rule in ALERTS}


def test_names_of_alerts_and_rules_are_unique() -> None:
    """Two rules of one name would be one line of two colours."""
    names = [rule.get("alert") or rule["record"] for rule in rules()]
    assert len(names) == len(set(names)) > 50


def test_every_panel_says_what_a_sound_picture_looks_like() -> None:
    """A title, a unit, a text, and places that do not overlap within a row."""
    described = list(panels())
    assert len(described) > 40
    for panel in described:
        assert panel["description"].endswith((".", ":")), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    assert len({panel["id"] for panel in described}) == len(described)
    assert len({panel["title"] for panel in described}) == len(described)


def test_panels_by_topic_show_a_few_of_them() -> None:
    """Ten thousand lines in a picture help nobody, and stop the browser."""
    for title, expression in drawn():
        if re.search(r"by \([^)]*topic", expression):
            assert expression.startswith(("topk(10, ", "sum(", "count(")), title


def test_every_metric_that_pages_name_exists() -> None:
    """Runbooks and pages lead to metrics that can be asked for."""
    pages = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "ARCHITECTURE.md"]
    endings = ("_bucket", "_sum", "_count")
    tests = {"offloaderd_deleted_at_the_source_is_kept_here"}  # the end of a test's name, in docs/proof/pips.md
    for page in pages:
        named = set(re.findall(r"(?<![\w:])offloaderd_[a-z0-9_]+[a-z0-9](?![\w:]*:)", page.read_text()))
        old = METRICS.keys() if page.name == "upgrade.md" else set()
        unknown = {name for name in named if name not in EXPORTED and not name.endswith(endings)} - tests - old
        assert not unknown, page.name


def test_what_is_exported_is_bounded() -> None:
    """So many series without topics, whatever a store answers; so many more a topic, and none left when it goes."""
    metrics = Metrics()
    for code in (*STORE_CODES, *(f"made up {number}" for number in range(100))):
        metrics.request_begun()
        metrics.request("UploadPart", code, 0.1, 1, 1)
    alone = _series(metrics)
    assert alone < SERIES_WITHOUT_TOPICS_MAX
    for number in range(10):
        for name, metric in EXPORTED.items():
            if "topic" in metric.labels:
                family = getattr(metrics, name.removeprefix("offloaderd_").removesuffix("_total"))
                rest = {label: values[0] for label, values in metric.labels.items() if label != "topic"}
                family.labels(topic=f"persistent://t/n/{number}", **rest)
    assert _series(metrics) - alone <= 10 * SERIES_A_TOPIC_MAX
    for number in range(10):
        metrics.drop_topic(f"persistent://t/n/{number}")
    assert _series(metrics) == alone


def _series(metrics: Metrics) -> int:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return sum(1 for line in lines if not line.startswith("#"))


def test_the_rule_that_the_page_gives_adds_the_namespace_to_what_has_a_topic() -> None:
    """A sum by namespace needs no label of its own: it stands in the topic's name."""
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    (rule,) = next(one for one in blocks if "metric_relabel_configs" in one)["metric_relabel_configs"]
    topic = str(TopicName.parse("persistent://acme/eu-west=1/a/b://c/d"))
    found = re.fullmatch(rule["regex"], topic)
    assert rule["source_labels"] == ["topic"]
    assert found is not None
    assert found[1] == "acme/eu-west=1"
