"""What holds for a topic: the levels merged, the narrowest first, and for each value the level that said it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from offloaderd.policy.policies import DEFAULTS, NAMES, OffloadPolicies

_TOGETHER = {"retention_age_s": "retention", "retention_bytes": "retention"}
"""Values that hold only with another one, of the level that said that one."""


class Origin(StrEnum):
    """At which level a value was said."""

    TOPIC = "topic"
    SELECTION = "selection"
    """By a pattern that enabled the topic."""
    NAMESPACE = "namespace"
    BROKER = "broker"
    SETTINGS = "settings"
    """In the daemon's file, or its environment."""
    DEFAULT = "default"


class Level(NamedTuple):
    """What was said at one place; `name` tells it from others of its kind (a topic, pattern or namespace)."""

    origin: Origin
    policies: OffloadPolicies
    name: str = ""

    def __str__(self) -> str:
        """The level in words."""
        return f"{self.origin} {self.name}" if self.name else str(self.origin)


BUILT_IN = Level(Origin.DEFAULT, DEFAULTS)


@dataclass(frozen=True, slots=True)
class Effective:
    """The merged policy. Every value is there, except limits that there are none of.

    `known` says whether somebody ever spoke of the topic itself, by its name or by a pattern.
    """

    values: OffloadPolicies
    levels: Mapping[str, Level]
    known: bool = True

    def said_at(self, name: str) -> Level:
        """Return the level that said a value, or that it is not limited."""
        return self.levels[name]


def effective(levels: Iterable[Level], *, known: bool = True) -> Effective:
    """Merge levels, the narrowest first; the built-in defaults stand behind them."""
    order = [*levels, BUILT_IN]
    found: dict[str, Level] = {}
    for name in NAMES:
        asked = _TOGETHER.get(name, name)
        found[name] = next((level for level in order if getattr(level.policies, asked) is not None), BUILT_IN)
    values: dict[str, Any] = {name: getattr(level.policies, name) for name, level in found.items()}
    return Effective(OffloadPolicies(**values), found, known)
