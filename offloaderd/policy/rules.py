"""What may not be said: values out of range, and values that contradict each other. All mistakes at once. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import OffloadMethod, TierRetention
from offloaderd.policy.merge import Effective, Level, Origin
from offloaderd.policy.policies import FIELDS, NAMES, OffloadPolicies, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where a policy is to hold: what the daemon has, and what Pulsar keeps of the topics (None: not known, no limit).

    `places` are the buckets and prefixes that the daemon stores in, its own first. Without a source topics are only
    pushed; without brokers nobody but the daemon deletes from the source.
    """

    places: tuple[tuple[str, str], ...] = ()
    has_source: bool = True
    has_brokers: bool = True
    retention_s: float | None = None
    retention_bytes: int | None = None


ANYWHERE = Surroundings()
"""Where nothing is known of the around."""


def sound(given: Mapping[str, object]) -> tuple[OffloadPolicies, list[str]]:
    """Return what was given as a policy, as far as each value is right, and what is wrong with the others."""
    flaws: list[str] = []
    values: dict[str, Any] = {}
    for name, value in given.items():
        field = FIELDS[name]
        flaw = field.flaw(value)
        if flaw is None:
            values[name] = field.settled(value)
        else:
            flaws.append(flaw)
    return OffloadPolicies(**values), flaws


def contradictions(own: OffloadPolicies, merged: Effective, around: Surroundings) -> list[str]:
    """Say what does not go together: within what is said now, and with what it inherits.

    A value that was inherited and stands in no relation to what is said now is nobody's mistake here.
    """
    return [
        *_ages(own, merged),
        *_method(own, merged, around),
        *_times(own, merged, around),
        *_sizes(own, merged, around),
        *_retention(own),
        *_location(own, merged, around),
    ]


def by_itself(own: OffloadPolicies) -> Effective:
    """Return a policy as if there were no other levels, not even defaults."""
    here = Level(Origin.TOPIC, own)
    return Effective(own, dict.fromkeys(NAMES, here))


def checked(own: OffloadPolicies, flaws: list[str], merged: Effective, around: Surroundings) -> None:
    """Raise InvalidInput with every mistake, if there is one."""
    found = [*flaws, *contradictions(own, merged, around)]
    if found:
        raise InvalidInput(
            "\n".join(found),
            hint="nothing was changed" if len(found) == 1 else f"nothing was changed: {len(found)} mistakes",
        )


def _said(name: str, value: object, merged: Effective) -> str:
    """Name a value with its level, where it is another than the one that is being changed."""
    return f"{FIELDS[name].label} = {shown(name, value)} of the {merged.said_at(name)}"


def _ages(own: OffloadPolicies, merged: Effective) -> Iterator[str]:
    values = merged.values
    low, high = values.segment_age_min_s, values.segment_age_max_s
    concerned = own.segment_age_min_s is not None or own.segment_age_max_s is not None
    if concerned and low is not None and high is not None and low > high:
        yield (
            f"{_said('segment_age_min_s', low, merged)} is more than {_said('segment_age_max_s', high, merged)}: "
            "the minimum is at most the maximum"
        )


def _method(own: OffloadPolicies, merged: Effective, around: Surroundings) -> Iterator[str]:
    if own.method is OffloadMethod.LEDGER_BASED and not around.has_source:
        yield (
            f"{FIELDS['method'].label}: ledger-based reads closed ledgers from their source, and this daemon has "
            "none, its topics are only pushed: use streaming"
        )
    given = [
        name for name in ("threshold_bytes", "threshold_s") if (getattr(own, name) or 0) > 0 or getattr(own, name) == 0
    ]
    if merged.values.method is OffloadMethod.NONE and given:
        said = " and ".join(FIELDS[name].label for name in given)
        yield f"{said}: nothing is offloaded with {_said('method', 'none', merged)}; give a method, or no threshold"


def waiting_time(own: OffloadPolicies, merged: Effective) -> str | None:
    """Return the value that says how long entries wait to be offloaded, if it is said here: by the method, an age."""
    by_method = {OffloadMethod.STREAMING: "segment_age_max_s", OffloadMethod.LEDGER_BASED: "threshold_s"}
    name = by_method.get(merged.values.method) if merged.values.method is not None else None
    value = getattr(own, name) if name is not None else None
    return name if value is not None and value >= 0 else None


def _times(own: OffloadPolicies, merged: Effective, around: Surroundings) -> Iterator[str]:
    """Entries have to be offloaded before Pulsar deletes them (PIP-76, PIP-17)."""
    name, kept_s = waiting_time(own, merged), around.retention_s
    if name is not None and kept_s is not None and getattr(own, name) >= kept_s:
        yield (
            f"{FIELDS[name].label}: {shown(name, getattr(own, name))} is not less than the {shown(name, kept_s)} that "
            "Pulsar retains the topics for: entries would be deleted before they are offloaded"
        )


def waiting_size(own: OffloadPolicies, merged: Effective) -> str | None:
    """Return the value that says how much waits to be offloaded, if it is said here."""
    ledgers = merged.values.method is OffloadMethod.LEDGER_BASED
    return "threshold_bytes" if ledgers and (own.threshold_bytes or 0) > 0 else None


def _sizes(own: OffloadPolicies, merged: Effective, around: Surroundings) -> Iterator[str]:
    """What the tier leaves in BookKeeper has to be less than what Pulsar keeps there (PIP-17)."""
    name, kept = waiting_size(own, merged), around.retention_bytes
    if name is not None and kept is not None and getattr(own, name) >= kept:
        yield (
            f"{FIELDS[name].label}: {shown(name, getattr(own, name))} is not less than the {shown(name, kept)} that "
            "Pulsar retains of a topic: entries would be deleted before they are offloaded"
        )


def _retention(own: OffloadPolicies) -> Iterator[str]:
    limits = [name for name in ("retention_age_s", "retention_bytes") if getattr(own, name) is not None]
    if own.retention is TierRetention.LIMITED and not limits:
        yield "retention: a limited retention needs retention_age_s or retention_bytes"
    if own.retention is not TierRetention.LIMITED and limits:
        yield f"{' and '.join(limits)}: limits belong to retention = limited, not {own.retention or 'an inherited one'}"


def _location(own: OffloadPolicies, merged: Effective, around: Surroundings) -> Iterator[str]:
    """A daemon stores where it looks after what it has stored; what lay elsewhere nobody would collect or rebuild."""
    if not around.places or (own.bucket is None and own.prefix is None):
        return
    wanted = (merged.values.bucket, merged.values.prefix)
    if any(all(one in {None, there} for one, there in zip(wanted, place, strict=True)) for place in around.places):
        return
    names = ("bucket", "prefix")
    given = [name for name in names if getattr(own, name) is not None]
    labels = " and ".join(FIELDS[name].label for name in given)
    meant = ", ".join(f"{name} {value!r}" for name, value in zip(names, wanted, strict=True) if value is not None)
    known = "; ".join(f"bucket {bucket!r}, prefix {prefix!r}" for bucket, prefix in around.places)
    yield (
        f"{labels}: {meant} is not where this daemon stores; it stores in {known}, by its settings objects.bucket, "
        "objects.prefix and objects.places"
    )
