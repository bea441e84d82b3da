"""Where all chance comes from: one seed, a generator of its own for every part, and what may go wrong how often.

Each run draws which kinds of faults it has at all, and how often (swarm testing): a run with everything at once never
gets far enough to see what two rare things do to each other.
"""

from __future__ import annotations

import random  # noqa: TID251 - every generator has its seed
from collections import Counter

Rng = random.Random

REQUEST_FAULTS = {
    "s3": ("error", "lost", "late", "twice", "throttled", "slow"),
    "zk": ("error", "disconnect", "slow", "stale"),
    "bk": ("error", "slow"),
}
"""By service, what can happen to one request."""

EVENTS = (
    "crash",
    "pause",
    "long pause",
    "drain",
    "zk cut",
    "s3 cut",
    "bk cut",
    "expire session",
    "clock jump",
    "misled",
    "restore",
    "second deployment",
    "s3 outage",
    "s3 full",
    "s3 denied",
    "s3 expired",
    "s3 slow",
    "s3 throttling",
    "bucket missing",
    "disable topic",
    "roll",
    "change policy",
    "collect",
    "mark ledgers",
    "revoke",
    "delete topic",
)
"""What can happen to a process, a service or a topic."""

QUOTAS = 0.35
"""The share of runs in which users set quotas."""
WEIGHTS = (0.0, 0.005, 0.02, 0.06)


class Chance:
    """The source of a run's chance."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, name: str) -> Rng:
        """Return a generator of its own for one part, so that parts do not disturb each other."""
        return Rng(f"{self.seed}/{name}")


class Faults:
    """What may go wrong in one run, and how often it did. `on` is cleared to let everything heal."""

    def __init__(self, chance: Chance) -> None:
        rng = chance.stream("faults")
        self.on = True
        self.fired: Counter[str] = Counter()
        self.rates: dict[str, list[tuple[str, float]]] = {}
        for service, kinds in REQUEST_FAULTS.items():
            rates = [(kind, rng.choice(WEIGHTS)) for kind in kinds]
            self.rates[service] = [(kind, rate) for kind, rate in rates if rate]
        chosen = [event for event in EVENTS if rng.random() < 0.35]
        self.events = chosen or ["crash", "pause"]
        if chance.stream("quotas").random() < QUOTAS:
            self.events.append("set quotas")
        self.every_s = rng.choice([1.0, 2.0, 4.0, 8.0])
        self.rotten = rng.random() < 0.2
        self.garbled = rng.choice([0.0, 0.0, 0.01, 0.05])
        self.upgrade = rng.random() < 0.3
        """Whether all daemons are of a release without ids at first."""
        self.misled = rng.random() < 0.4
        """Whether daemons read another history as soon as they can tell, where the source is a simulated one."""

    def draw(self, service: str, rng: Rng, *, times: float = 1.0) -> str:
        """Return what happens to one request; nothing, mostly. `times` makes it more likely."""
        if not self.on:
            return ""
        drawn = rng.random()
        for kind, rate in self.rates[service]:
            drawn -= rate * times
            if drawn < 0:
                return kind
        return ""

    def count(self, what: str) -> None:
        """Note that something went wrong."""
        self.fired[what] += 1
