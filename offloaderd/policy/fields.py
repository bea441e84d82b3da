"""Each value of a policy: its names here and in Pulsar, its unit, its range, and how a person writes it. Pure.

One table for every way in (the API, the command line, a broker's configuration), so that all say the same of a value.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING

from offloaderd.errors import InvalidInput
from offloaderd.model import HistoryOrder, OffloadMethod, OutagePolicy, TierRetention
from offloaderd.policy.policies import OFF
from offloaderd.read_options import ReadPriority
from offloaderd.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offloaderd.policy.policies import OffloadPolicies

KiB, MiB, TiB = 2**10, 2**20, 2**40
MINUTE_S, DAY_S = 60, 86_400
INT_MAX = 2**63 - 1
TIME_MAX_S = 3650 * DAY_S
"""Ten years; more is a forgotten unit."""


class Kind(StrEnum):
    """What sort of value it is."""

    BYTES = "bytes"
    SECONDS = "seconds"
    WORD = "word"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One value. `pulsar` is its name there, `scale` how many bytes or seconds one of Pulsar's units is.

    `low` is allowed if not `above`; with `off` any negative number is too, and means that there is none.
    """

    name: str
    option: str
    kind: Kind
    pulsar: str = ""
    scale: Fraction = Fraction(1)
    low: int = 0
    above: bool = False
    high: int = INT_MAX
    off: bool = False
    words: Callable[[str], StrEnum] | None = None
    choices: tuple[str, ...] = ()
    shape: str = ""
    form: str = ""

    @property
    def label(self) -> str:
        """Its name here, and in Pulsar if it has one there."""
        return f"{self.name} ({self.pulsar})" if self.pulsar else self.name

    @property
    def allowed(self) -> str:
        """The range, with the unit, in words."""
        if self.kind is Kind.WORD:
            return f"one of {', '.join(self.choices)}"
        if self.kind is Kind.TEXT:
            return self.form
        unit = "bytes" if self.kind is Kind.BYTES else "seconds"
        low = f"more than {self.low}" if self.above else str(self.low)
        return f"{low} to {self.high} {unit}" + (", or negative for none" if self.off else "")

    def flaw(self, value: object) -> str | None:
        """Say what is wrong with a value that was given; None for nothing."""
        return None if self._fits(value) else f"{self.label}: {value!r} is not {self.allowed}"

    def _fits(self, value: object) -> bool:
        if self.kind is Kind.WORD:
            return self._word(value) is not None
        if self.kind is Kind.TEXT:
            return isinstance(value, str) and re.fullmatch(self.shape, value) is not None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return False
        if self.kind is Kind.BYTES and not isinstance(value, int):
            return False
        if self.off and value < 0:
            return True
        return (value > self.low if self.above else value >= self.low) and value <= self.high

    def settled(self, value: object) -> object:
        """Return a sound value in its one spelling: any negative number is OFF, a word the value that it names."""
        if self.kind is Kind.WORD:
            return self._word(value)
        if self.off and isinstance(value, int | float) and value < 0:
            return type(value)(OFF)
        return float(value) if self.kind is Kind.SECONDS and isinstance(value, int) else value

    def read(self, text: str, *, scale: Fraction = Fraction(1)) -> object:
        """Read a value as a person writes it: `256M`, `2h`, a word. `scale` is the unit of a bare number.

        Raises InvalidInput.
        """
        value: object = text.strip() if self.kind in {Kind.WORD, Kind.TEXT} else self._number(text, scale)
        if not self._fits(value):
            raise InvalidInput(f"{self.label}: {text!r} is not {self.allowed}")
        return self.settled(value)

    def _word(self, value: object) -> StrEnum | None:
        """Return what a word stands for, also one that Pulsar or a PIP spells otherwise; None for no such word."""
        if self.words is None or not isinstance(value, str):
            return None
        try:
            return self.words(value)
        except (InvalidInput, ValueError):
            return None

    def _number(self, text: str, scale: Fraction) -> int | float | None:
        if self.off and text.strip().lower() in {"off", "never"}:
            return OFF if self.kind is Kind.BYTES else float(OFF)
        negative = self.off and text.strip().startswith("-")
        number = text.strip()[1:] if negative else text
        try:
            read = parse_bytes if self.kind is Kind.BYTES else parse_seconds
            value = read(number, bare=scale)
        except ValueError:
            return None
        return -value if negative else value


def _retention(text: str) -> TierRetention:
    return TierRetention(text)


FIELDS: Mapping[str, Field] = {
    field.name: field
    for field in (
        Field(
            name="method",
            option="method",
            kind=Kind.WORD,
            pulsar="offloadMethod",
            words=OffloadMethod.parse,
            choices=tuple(OffloadMethod),
        ),
        Field(
            name="segment_bytes_max",
            option="segment-size",
            kind=Kind.BYTES,
            pulsar="maxSizePerOffloadSegmentMbytes",
            scale=Fraction(MiB),
            low=1,
            high=5 * TiB,
        ),
        Field(
            name="segment_age_max_s",
            option="segment-age",
            kind=Kind.SECONDS,
            pulsar="maxOffloadSegmentRolloverTimeMinutes",
            scale=Fraction(MINUTE_S),
            above=True,
            high=TIME_MAX_S,
        ),
        Field(
            name="segment_age_min_s",
            option="segment-age-min",
            kind=Kind.SECONDS,
            pulsar="minOffloadSegmentRolloverTimeMinutes",
            scale=Fraction(MINUTE_S),
            high=TIME_MAX_S,
        ),
        Field(
            name="threshold_bytes",
            option="threshold-size",
            kind=Kind.BYTES,
            pulsar="managedLedgerOffloadThresholdInBytes",
            off=True,
        ),
        Field(
            name="threshold_s",
            option="threshold-age",
            kind=Kind.SECONDS,
            pulsar="managedLedgerOffloadThresholdInSeconds",
            high=TIME_MAX_S,
            off=True,
        ),
        Field(
            name="deletion_lag_s",
            option="deletion-lag",
            kind=Kind.SECONDS,
            pulsar="managedLedgerOffloadDeletionLagInMillis",
            scale=Fraction(1, 1000),
            high=TIME_MAX_S,
            off=True,
        ),
        Field(
            name="read_priority",
            option="read-priority",
            kind=Kind.WORD,
            pulsar="managedLedgerOffloadedReadPriority",
            words=ReadPriority.parse,
            choices=tuple(ReadPriority),
        ),
        Field(
            name="bucket",
            option="bucket",
            kind=Kind.TEXT,
            pulsar="managedLedgerOffloadBucket",
            shape=r"([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])?",
            form="3 to 63 lower-case letters, digits, dots and dashes",
        ),
        Field(
            name="prefix",
            option="prefix",
            kind=Kind.TEXT,
            shape=r"([^/\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,499})?",
            form="up to 500 characters without control characters, no slash at the start",
        ),
        Field(
            name="history_order",
            option="history-order",
            kind=Kind.WORD,
            words=HistoryOrder.parse,
            choices=tuple(HistoryOrder),
        ),
        Field(name="outage", option="outage", kind=Kind.WORD, words=OutagePolicy.parse, choices=tuple(OutagePolicy)),
        Field(name="retention", option="retention", kind=Kind.WORD, words=_retention, choices=tuple(TierRetention)),
        Field(name="retention_age_s", option="retain-age", kind=Kind.SECONDS, above=True, high=TIME_MAX_S),
        Field(name="retention_bytes", option="retain-size", kind=Kind.BYTES, low=1),
    )
}
"""By name, in the order in which `OffloadPolicies` has them."""


def shown(name: str, value: object) -> str:
    """Return a value as a person reads it, `off` for none."""
    if value is None or value == "":
        return "-"
    if FIELDS[name].off and isinstance(value, int | float) and value < 0:
        return "off"
    if FIELDS[name].kind is Kind.SECONDS and isinstance(value, float):
        return _time(value)
    if FIELDS[name].kind is Kind.BYTES and isinstance(value, int):
        return _size(value)
    return str(value)


def _time(value: float) -> str:
    for unit, factor in (("d", DAY_S), ("h", 3600), ("min", MINUTE_S)):
        if value and value % factor == 0:
            return f"{value / factor:g} {unit}"
    return f"{value:g} s"


def _size(value: int) -> str:
    for unit, factor in (("TiB", TiB), ("GiB", 2**30), ("MiB", MiB), ("KiB", KiB)):
        if value and value % factor == 0:
            return f"{value // factor} {unit}"
    return f"{value} B"


def differences(before: OffloadPolicies, after: OffloadPolicies) -> list[str]:
    """Say which values differ, each with the old and the new one."""
    changed = [name for name in FIELDS if getattr(before, name) != getattr(after, name)]
    return [f"{name}: {shown(name, getattr(before, name))} -> {shown(name, getattr(after, name))}" for name in changed]
