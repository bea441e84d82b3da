"""The effective policy of a topic: its levels merged, the narrowest first, and the level of each value. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from offloaderd.policy.policies import DEFAULTS, NAMES, OffloadPolicies

_TOGETHER = {"retention_age_s": "retention", "retention_bytes": "retention"}
"""Values that hold only with another one, of the same level."""


class Origin(StrEnum):
    """The kinds of levels."""

    TOPIC = "topic"
    SELECTION = "selection"
    """A pattern that enabled the topic."""
    NAMESPACE = "namespace"
    BROKER = "broker"
    SETTINGS = "settings"
    """The daemon's file, or its environment."""
    DEFAULT = "default"


class Level(NamedTuple):
    """The policies of one level; `name` is of the topic, pattern or namespace."""

    origin: Origin
    policies: OffloadPolicies
    name: str = ""

    def __str__(self) -> str:
        return f"{self.origin} {self.name}" if self.name else str(self.origin)


BUILT_IN = Level(Origin.DEFAULT, DEFAULTS)


@dataclass(frozen=True, slots=True)
class Effective:
    """The merged policy: every value but absent limits. `known`: the topic has a policy, by name or by a pattern."""

    values: OffloadPolicies
    levels: Mapping[str, Level]
    known: bool = True

    def level_of(self, name: str) -> Level:
        """Return the level of a value, or of the missing limit."""
        return self.levels[name]


def effective(levels: Iterable[Level], *, known: bool = True) -> Effective:
    """Merge levels, the narrowest first; the built-in defaults come last."""
    order = [*levels, BUILT_IN]
    found: dict[str, Level] = {}
    for name in NAMES:
        asked = _TOGETHER.get(name, name)
        found[name] = next((level for level in order if getattr(level.policies, asked) is not None), BUILT_IN)
    values: dict[str, Any] = {name: getattr(level.policies, name) for name, level in found.items()}
    return Effective(OffloadPolicies(**values), found, known)
