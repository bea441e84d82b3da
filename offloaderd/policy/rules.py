"""Checks of policies: values out of range, and contradictions between values. All mistakes at once. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import MirrorRequired, OffloadMethod, TierRetention
from offloaderd.objects.stored_as import class_flaw, tags_flaw
from offloaderd.policy.policies import FIELDS, NAMES, Effective, Level, OffloadPolicies, Origin, place_named, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The surroundings of a policy: the daemon's, and Pulsar's retention of the topics (None: unknown, or no limit).

    `places` are the buckets and prefixes of the daemon, its own first. Without a source topics are only pushed; without
    brokers only the daemon deletes from the source.
    """

    places: tuple[tuple[str, str], ...] = ()
    has_source: bool = True
    has_brokers: bool = True
    retention_s: float | None = None
    retention_bytes: int | None = None
    services: Mapping[str, str] = field(default_factory=dict)
    """Kind of the service of each bucket, as in `stored_as.CLASSES`; none: unknown."""


ANYWHERE = Surroundings()
"""Unknown surroundings."""


def sound(given: Mapping[str, object]) -> tuple[OffloadPolicies, list[str]]:
    """Return the valid values as a policy, and the flaws of the others."""
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
    """Return the contradictions of the new values with each other and with inherited ones."""
    return [
        *_ages(own, merged),
        *_method(own, merged, around),
        *_waits(own, merged, around),
        *_retention(own),
        *_location(own, merged, around),
        *_mirror(own, merged, around),
        *_stored_as(own, merged, around),
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


def _at(name: str, value: object, merged: Effective) -> str:
    """Return a value with its level."""
    return f"{FIELDS[name].label} = {shown(name, value)} of the {merged.levels[name]}"


def _ages(own: OffloadPolicies, merged: Effective) -> Iterator[str]:
    values = merged.values
    low, high = values.segment_age_min_s, values.segment_age_max_s
    concerned = own.segment_age_min_s is not None or own.segment_age_max_s is not None
    if concerned and low is not None and high is not None and low > high:
        yield (
            f"{_at('segment_age_min_s', low, merged)} is more than {_at('segment_age_max_s', high, merged)}: "
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
        names = " and ".join(FIELDS[name].label for name in given)
        yield f"{names}: nothing is offloaded with {_at('method', 'none', merged)}; give a method, or no threshold"


def waiting_time(own: OffloadPolicies, merged: Effective) -> str | None:
    """Return the name of the new value that sets how long entries wait to be offloaded; None without one."""
    by_method = {OffloadMethod.STREAMING: "segment_age_max_s", OffloadMethod.LEDGER_BASED: "threshold_s"}
    name = by_method.get(merged.values.method) if merged.values.method is not None else None
    value = getattr(own, name) if name is not None else None
    return name if value is not None and value >= 0 else None


def waiting_size(own: OffloadPolicies, merged: Effective) -> str | None:
    """Return the name of the new value that sets how many bytes wait to be offloaded; None without one."""
    ledgers = merged.values.method is OffloadMethod.LEDGER_BASED
    return "threshold_bytes" if ledgers and (own.threshold_bytes or 0) > 0 else None


def _waits(own: OffloadPolicies, merged: Effective, around: Surroundings) -> Iterator[str]:
    """Entries must be offloaded before Pulsar deletes them (PIP-76, PIP-17)."""
    limits = (
        (waiting_time(own, merged), around.retention_s, "the topics for"),
        (waiting_size(own, merged), around.retention_bytes, "of a topic"),
    )
    for name, retained, what in limits:
        if name is not None and retained is not None and getattr(own, name) >= retained:
            yield (
                f"{FIELDS[name].label}: {shown(name, getattr(own, name))} is not less than the {shown(name, retained)} "
                f"that Pulsar retains {what}: entries would be deleted before they are offloaded"
            )


def _retention(own: OffloadPolicies) -> Iterator[str]:
    limits = [name for name in ("retention_age_s", "retention_bytes") if getattr(own, name) is not None]
    if own.retention is TierRetention.LIMITED and not limits:
        yield "retention: a limited retention needs retention_age_s or retention_bytes"
    if own.retention is not TierRetention.LIMITED and limits:
        yield f"{' and '.join(limits)}: limits belong to retention = limited, not {own.retention or 'an inherited one'}"


def _location(own: OffloadPolicies, merged: Effective, around: Surroundings) -> Iterator[str]:
    """A daemon stores in its own places alone: objects elsewhere would never be collected or rebuilt."""
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
        "objects.prefix, objects.places and objects.services"
    )


def _mirror(own: OffloadPolicies, merged: Effective, around: Surroundings) -> Iterator[str]:
    """A mirror is one of the daemon's places, another one than the topic's own, and there if it is demanded."""
    values, changed = merged.values, own.mirror is not None or own.bucket is not None or own.prefix is not None
    mirror = place_named(values.mirror or "")
    demanded = values.mirror_required is MirrorRequired.YES
    if demanded and values.mirror == "" and (own.mirror is not None or own.mirror_required is not None):
        demand = _at("mirror_required", values.mirror_required, merged)
        yield (
            f"{demand} needs a mirror, and the {merged.levels['mirror']} names none: nothing could ever be granted. "
            "Give a mirror (BUCKET/PREFIX) as well, or mirror_required = no"
        )
    if mirror is None or not around.places or not changed:
        return
    known = "; ".join(f"{bucket}/{prefix}" for bucket, prefix in around.places)
    if mirror not in around.places:
        yield f"{_at('mirror', values.mirror, merged)} is no place of this daemon's; objects.places has {known}"
    home = around.places[0]
    place = (values.bucket, values.prefix)
    if mirror == tuple(here if one is None else one for one, here in zip(place, home, strict=True)):
        yield f"{_at('mirror', values.mirror, merged)} is the place of the segments themselves; it has {known}"


def _stored_as(own: OffloadPolicies, merged: Effective, around: Surroundings) -> Iterator[str]:
    """A class has to be one that the service has and that can be read at once, and a tag has one value.

    With another bucket this holds for inherited values as well, but not for those of the settings, each of which is for
    its own service.
    """
    home = around.places[0][0] if around.places else ""
    service = around.services.get(home if merged.values.bucket is None else merged.values.bucket, "")
    for name, flaw_of in (("storage_class", class_flaw), ("tags", tags_flaw)):
        value = merged.given(name) if own.bucket is not None else getattr(own, name)
        if flaw := flaw_of(value or "", service):
            told = FIELDS[name].label if getattr(own, name) is not None else _at(name, value, merged)
            yield f"{told}: {flaw}"
