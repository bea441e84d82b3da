"""What the PromQL of rules and dashboard asks for: metrics, and the labels it picks them by."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import promql_parser
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
PROMETHEUS, GRAFANA = ROOT / "deploy" / "prometheus", ROOT / "deploy" / "grafana"
VARIABLES = {"$job": ".*", "$instance": ".*", "$topic": ".*", "$__rate_interval": "5m"}


class Asked(NamedTuple):
    """One metric that an expression asks for, with `(label, operator, value)` of its matchers."""

    where: str
    metric: str
    matchers: tuple[tuple[str, str, str], ...]


def rules() -> Iterator[dict[str, Any]]:
    """Every rule of every file, alerts and recorded ones."""
    for path in sorted(PROMETHEUS.glob("*.rules.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def unfolded() -> list[dict[str, Any]]:
    """What the dashboard shows at first: heads of rows, and the panels of those that are not folded up."""
    shown: list[dict[str, Any]] = json.loads((GRAFANA / "offloaderd.json").read_text())["panels"]
    return shown


def panels() -> Iterator[dict[str, Any]]:
    """Every panel of the dashboard, in whatever row."""
    for panel in unfolded():
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def drawn() -> Iterator[tuple[str, str]]:
    """`(panel, expression)` of every query of the dashboard, with all chosen in its variables."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], chosen(target["expr"])


def chosen(expression: str, **values: str) -> str:
    """Return a query of the dashboard with all chosen in its variables, but for those that have a value here."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, values.get(name.lstrip("$"), value))
    return expression


def expressions() -> Iterator[tuple[str, str]]:
    """`(where, expression)` of all rules and panels."""
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    yield from drawn()


def asked_by(where: str, expression: str) -> Iterator[Asked]:
    """Every metric of one expression."""
    yield from _selectors(where, promql_parser.parse(expression))


def _selectors(where: str, node: Any) -> Iterator[Asked]:  # noqa: ANN401 - the library's nodes share no useful type
    if isinstance(node, promql_parser.VectorSelector):
        matchers = tuple((one.name, str(one.op).rpartition(".")[2], one.value) for one in node.matchers.matchers)
        assert node.name, f"{where}: a selector without a name asks for everything"
        yield Asked(where, node.name, matchers)
        return
    children = [getattr(node, name, None) for name in ("vector_selector", "expr", "lhs", "rhs", "param")]
    for child in (*children, *getattr(node, "args", ())):
        if child is not None:
            yield from _selectors(where, child)


def plain(metric: str) -> str:
    """The name of the family that a series of a histogram belongs to."""
    return re.sub(r"_(bucket|sum|count)$", "", metric)
