"""The values of a policy: how topics are offloaded, read and retained. None leaves a value to the next level.

Names and meanings are those of PIP-76, PIP-17 and PIP-73 in Pulsar's code (`OffloadPoliciesImpl`). "off" is a value: a
threshold or lag of OFF ends the search, None continues it. The API, the command line and the reader of a broker's
configuration share one table of values. `effective` merges the levels of a topic. Pure.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, NamedTuple

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import HistoryOrder, MirrorRequired, OffloadMethod, OutagePolicy, TierRetention
from offloaderd.core.read_options import ReadPriority
from offloaderd.core.units import parse_bytes, parse_seconds
from offloaderd.objects.stored_as import STORAGE_CLASS, STORAGE_CLASS_FORM, TAGS, TAGS_FORM

OFF = -1
"""Any negative threshold or lag: no threshold, never delete."""
KiB, MiB, TiB = 2**10, 2**20, 2**40
MINUTE_S, DAY_S = 60, 86_400
INT_MAX = 2**63 - 1
TIME_MAX_S = 3650 * DAY_S
"""Ten years; more is a mistake of the unit."""


class Kind(StrEnum):
    """Kinds of values."""

    BYTES = "bytes"
    SECONDS = "seconds"
    NUMBER = "number"
    WORD = "word"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One value: its names, its unit, its range, and its text.

    `pulsar` is its name there, `scale` the bytes or seconds of Pulsar's unit. `low` is allowed if not `above`; with
    `off` any negative number is too, and means none. A text matches `shape`, which `form` describes.
    """

    name: str = ""
    option: str
    kind: Kind
    pulsar: str = ""
    scale: Fraction = Fraction(1)
    low: int = 0
    above: bool = False
    high: int = INT_MAX
    off: bool = False
    words: type[StrEnum] | None = None
    shape: str = ""
    form: str = ""

    @property
    def label(self) -> str:
        """Its name here, and in Pulsar if there is one."""
        return f"{self.name} ({self.pulsar})" if self.pulsar else self.name

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed words, in our spelling; empty for other kinds."""
        return tuple(self.words or ())

    @property
    def allowed(self) -> str:
        """Its range and unit, as text."""
        if self.kind is Kind.WORD:
            return f"one of {', '.join(self.choices)}"
        if self.kind is Kind.TEXT:
            return self.form
        unit = "" if self.kind is Kind.NUMBER else f" {self.kind}"
        low = f"more than {self.low}" if self.above else str(self.low)
        return f"{low} to {self.high}{unit}" + (", or negative for none" if self.off else "")

    def flaw(self, value: object) -> str | None:
        """Return the flaw of a value; None without one."""
        return None if self._fits(value) else f"{self.label}: {value!r} is not {self.allowed}"

    def _fits(self, value: object) -> bool:
        if self.kind is Kind.WORD:
            return self._word(value) is not None
        if self.kind is Kind.TEXT:
            return isinstance(value, str) and re.fullmatch(self.shape, value) is not None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return False
        if self.kind in {Kind.BYTES, Kind.NUMBER} and not isinstance(value, int):
            return False
        if self.off and value < 0:
            return True
        return (value > self.low if self.above else value >= self.low) and value <= self.high

    def settled(self, value: object) -> object:
        """Return a valid value in its canonical form: OFF for a negative number, the member for a word."""
        if self.kind is Kind.WORD:
            return self._word(value)
        if self.off and isinstance(value, int | float) and value < 0:
            return type(value)(OFF)
        return float(value) if self.kind is Kind.SECONDS and isinstance(value, int) else value

    def read(self, text: str, *, scale: Fraction = Fraction(1)) -> object:
        """Read a text: `256M`, `2h`, a word; `scale` is the unit of a bare number. Raises InvalidInput."""
        value: object = text.strip() if self.kind in {Kind.WORD, Kind.TEXT} else self._number(text, scale)
        if not self._fits(value):
            raise InvalidInput(f"{self.label}: {text!r} is not {self.allowed}")
        return self.settled(value)

    def shown(self, value: object) -> str:
        """Return a value as text, `off` for OFF, `-` for none."""
        if value is None or value == "":
            return "-"
        if self.off and isinstance(value, int | float) and value < 0:
            return "off"
        if self.kind is Kind.SECONDS and isinstance(value, float):
            return _time(value)
        if self.kind is Kind.BYTES and isinstance(value, int):
            return _size(value)
        return str(value)

    def _word(self, value: object) -> StrEnum | None:
        """Return the member for a word, also in the spelling of Pulsar or a PIP; None for an unknown word."""
        if self.words is None or not isinstance(value, str):
            return None
        parse: Callable[[str], StrEnum] = getattr(self.words, "parse", self.words)
        try:
            return parse(value)
        except (InvalidInput, ValueError):
            return None

    def _number(self, text: str, scale: Fraction) -> int | float | None:
        if self.off and text.strip().lower() in {"off", "never"}:
            return float(OFF) if self.kind is Kind.SECONDS else OFF
        negative = self.off and text.strip().startswith("-")
        number = text.strip()[1:] if negative else text
        try:
            if self.kind is Kind.NUMBER:
                value: int | float = int(number)
            else:
                value = (parse_bytes if self.kind is Kind.BYTES else parse_seconds)(number, bare=scale)
        except ValueError:
            return None
        return -value if negative else value


def _value(kind: Kind, option: str, pulsar: str = "", scale: Fraction = Fraction(1), **more: Any) -> Any:  # noqa: ANN401 - of any type
    """Return a field of OffloadPolicies, None by default, with its row of FIELDS."""
    return field(default=None, metadata={"row": Field(kind=kind, option=option, pulsar=pulsar, scale=scale, **more)})


_word, _text = partial(_value, Kind.WORD), partial(_value, Kind.TEXT)
_bytes, _seconds = partial(_value, Kind.BYTES), partial(_value, Kind.SECONDS, high=TIME_MAX_S)
_MBYTE, _MINUTE, _MILLI = Fraction(MiB), Fraction(MINUTE_S), Fraction(1, 1000)
_BUCKET = (
    r"([a-z0-9][a-z0-9._-]{1,61}[a-z0-9])?",
    "3 to 63 lower-case letters, digits, dots, dashes and (Google) underscores",
)
_MIRROR = (
    r"([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])?(/([^/\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,499})?)?",
    "BUCKET/PREFIX; empty for none",
)
_PREFIX = (
    r"([^/\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,499})?",
    "up to 500 characters without control characters, no slash at the start",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadPolicies:
    """The values of one level; sizes in bytes, times in seconds.

    The ledger-based method leaves `threshold_bytes` and `threshold_s` in BookKeeper: 0 offloads every closed ledger.
    `deletion_lag_s` counts from the offload. `retention` and its two limits come from one level; a limit of None is
    none.
    """

    method: OffloadMethod | None = _word("method", "offloadMethod", words=OffloadMethod)
    segment_bytes_max: int | None = _bytes(
        "segment-size", "maxSizePerOffloadSegmentMbytes", _MBYTE, low=1, high=5 * TiB
    )
    segment_age_max_s: float | None = _seconds(
        "segment-age", "maxOffloadSegmentRolloverTimeMinutes", _MINUTE, above=True
    )
    segment_age_min_s: float | None = _seconds("segment-age-min", "minOffloadSegmentRolloverTimeMinutes", _MINUTE)
    threshold_bytes: int | None = _bytes("threshold-size", "managedLedgerOffloadThresholdInBytes", off=True)
    threshold_s: float | None = _seconds("threshold-age", "managedLedgerOffloadThresholdInSeconds", off=True)
    deletion_lag_s: float | None = _seconds("deletion-lag", "managedLedgerOffloadDeletionLagInMillis", _MILLI, off=True)
    read_priority: ReadPriority | None = _word(
        "read-priority", "managedLedgerOffloadedReadPriority", words=ReadPriority
    )
    bucket: str | None = _text("bucket", "managedLedgerOffloadBucket", shape=_BUCKET[0], form=_BUCKET[1])
    prefix: str | None = _text("prefix", shape=_PREFIX[0], form=_PREFIX[1])
    storage_class: str | None = _text("storage-class", shape=STORAGE_CLASS, form=STORAGE_CLASS_FORM)
    tags: str | None = _text("tags", shape=TAGS, form=TAGS_FORM)
    mirror: str | None = _text("mirror", shape=_MIRROR[0], form=_MIRROR[1])
    mirror_required: MirrorRequired | None = _word("mirror-required", words=MirrorRequired)
    history_order: HistoryOrder | None = _word("history-order", words=HistoryOrder)
    outage: OutagePolicy | None = _word("outage", words=OutagePolicy)
    retention: TierRetention | None = _word("retention", words=TierRetention)
    retention_age_s: float | None = _seconds("retain-age", above=True)
    retention_bytes: int | None = _bytes("retain-size", low=1)

    def set_values(self) -> Mapping[str, Any]:
        """Return the values that are not None, by name, in the order of the fields."""
        values = {name: getattr(self, name) for name in NAMES}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def offloads(self) -> bool:
        """Whether it names a method, and so offloads a namespace's topics."""
        return self.method is not None and self.method is not OffloadMethod.NONE


FIELDS: Mapping[str, Field] = {one.name: replace(one.metadata["row"], name=one.name) for one in fields(OffloadPolicies)}
"""The values by name, in the order of `OffloadPolicies`."""
NAMES = tuple(FIELDS)

DEFAULTS = OffloadPolicies(
    method=OffloadMethod.STREAMING,
    segment_bytes_max=1024**3,
    segment_age_max_s=600.0,
    segment_age_min_s=0.0,
    threshold_bytes=OFF,
    threshold_s=float(OFF),
    deletion_lag_s=14_400.0,
    read_priority=ReadPriority.TIERED_STORAGE_FIRST,
    bucket="",
    prefix="",
    storage_class="",
    tags="",
    mirror="",
    mirror_required=MirrorRequired.NO,
    history_order=HistoryOrder.HISTORY_FIRST,
    outage=OutagePolicy.SOURCE,
    retention=TierRetention.KEEP,
)
"""Built-in defaults. Thresholds are off as in Pulsar: closed ledgers are offloaded by request alone."""


def place_named(mirror: str) -> tuple[str, str] | None:
    """Return bucket and prefix of a mirror as a policy writes it, None for none."""
    bucket, _, prefix = mirror.partition("/")
    return (bucket, prefix) if mirror else None


def shown(name: str, value: object) -> str:
    """Return a value as text, `off` for OFF."""
    return FIELDS[name].shown(value)


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
    """Return the values that differ, each with the old and the new one."""
    changed = [name for name in FIELDS if getattr(before, name) != getattr(after, name)]
    return [f"{name}: {shown(name, getattr(before, name))} -> {shown(name, getattr(after, name))}" for name in changed]


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

    def given(self, name: str) -> Any:  # noqa: ANN401 - of any field
        """Return a value that a policy gives; None for one of the daemon's settings or of the defaults."""
        inherited = self.levels[name].origin in {Origin.SETTINGS, Origin.DEFAULT}
        return None if inherited else getattr(self.values, name)


def effective(levels: Iterable[Level], *, known: bool = True) -> Effective:
    """Merge levels, the narrowest first; the built-in defaults come last."""
    order = [*levels, BUILT_IN]
    found: dict[str, Level] = {}
    for name in NAMES:
        asked = _TOGETHER.get(name, name)
        found[name] = next((level for level in order if getattr(level.policies, asked) is not None), BUILT_IN)
    values: dict[str, Any] = {name: getattr(level.policies, name) for name, level in found.items()}
    return Effective(_shared(OffloadPolicies(**values)), found, known)


@lru_cache(maxsize=100)
def _shared(values: OffloadPolicies) -> OffloadPolicies:
    """Return one value for all equal ones: thousands of topics keep what they apply."""
    return values
