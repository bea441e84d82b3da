"""What a bucket does to objects by itself: life-cycle rules and versions, and which of it harms segments. Pure.

A rule harms segments if it expires or archives current objects, or ends uploads that a daemon still works on. What a
rule does to old versions harms nothing: no reader asks for them. Rules are those of S3,
https://docs.aws.amazon.com/AmazonS3/latest/userguide/intro-lifecycle-rules.html (read 2026-11).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from offloaderd.objects import keys
from offloaderd.objects.keys import ObjectKind
from offloaderd.objects.stored_as import CLASSES

DAY_S = 86_400
_NAME_SHAPE = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
_ENDS = (*(f"-{one}" for one in ObjectKind if one is not ObjectKind.DATA), ".head", ".marker")
_END_OF_NAME = re.compile(r"(?:.*-)?[0-9a-f]{12}|[0-9a-f]{1,11}|((.*-ledger|[a-z]{0,6})-)?[0-9]{1,19}", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeCycleRule:
    """One rule that is in force. None or empty: it does nothing of that kind.

    It acts on keys that begin with `prefix` and, if there are `suffixes`, end with one of them. `expires` and `moves`
    say when, as `after 30 days` or `on 2027-01-01`; `moves` by storage class.
    """

    name: str
    prefix: str = ""
    suffixes: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    expires: str = ""
    moves: Mapping[str, str] = field(default_factory=dict)
    ends_uploads_days: int | None = None
    ends_versions: bool = False
    """Whether it deletes old versions."""


class Versioning(NamedTuple):
    """Whether a bucket keeps old versions; `suspended`: those of before.

    `soft_delete_s`: for how long it keeps what was deleted in any case. `locked`: what refuses deletions.
    """

    enabled: bool
    suspended: bool = False
    soft_delete_s: int = 0
    locked: str = ""


@runtime_checkable
class LifeCycle(Protocol):
    """A store whose bucket has rules that can be looked at."""

    async def life_cycle_rules(self) -> list[LifeCycleRule]:
        """Return the rules that are in force. Raises Denied, Transient, InvalidInput where there is no such call."""

    async def versioning(self) -> Versioning:
        """Return whether old versions are kept. Raises as `life_cycle_rules`."""


class Harm(NamedTuple):
    """What a rule does to segments, and whether that is certain: its tags may be on none of them."""

    rule: str
    does: str
    certain: bool


def harms(
    rules: Iterable[LifeCycleRule], *, prefix: str, service: str, tags: Mapping[str, str], open_s_max: float
) -> Iterator[Harm]:
    """Yield what rules do to segments below `prefix` that have these tags, open for `open_s_max` seconds at most.

    A tag with a place for the topic's name, `{tenant}`, may have any value. Archives are those of the `service`.
    """
    known = CLASSES.get(service)
    archives = {one.upper() for one in known.archives} if known is not None else set()
    for rule in rules:
        if not covers(rule.prefix, prefix) or (rule.suffixes and not any(map(may_end, rule.suffixes))):
            continue
        certain = all(name in tags and ("{" in tags[name] or tags[name] == value) for name, value in rule.tags.items())
        if rule.expires:
            yield Harm(rule.name, f"deletes objects {rule.expires}", certain)
        for storage_class, when in rule.moves.items():
            if storage_class.upper() in archives:
                yield Harm(rule.name, f"archives objects as {storage_class} {when}", certain)
        if rule.ends_uploads_days is not None and rule.ends_uploads_days * DAY_S <= open_s_max:
            days = open_s_max / DAY_S
            yield Harm(
                rule.name,
                f"ends uploads after {rule.ends_uploads_days} days, and a segment may be open for {days:.3g}",
                certain=not rule.tags,
            )


def keeps_versions(rules: Iterable[LifeCycleRule], prefix: str) -> bool:
    """Whether no rule deletes the old versions of all segments below `prefix`."""
    ending = [one for one in rules if one.ends_versions and not one.tags and not one.suffixes]
    return not any(prefix.startswith(one.prefix) for one in ending)


def covers(rule_prefix: str, prefix: str) -> bool:
    """Whether a rule for keys that begin with `rule_prefix` concerns any object that is stored below `prefix`."""
    if prefix.startswith(rule_prefix):
        return True
    if not rule_prefix.startswith(prefix):
        return False
    rest = rule_prefix.removeprefix(prefix)
    folders = any(one.startswith(rest) or rest.startswith(one) for one in (keys.HEADS, keys.MARKERS))
    shape = re.sub("[0-9a-f]", "x", rest[: len(_NAME_SHAPE)])
    return folders or _NAME_SHAPE.startswith(shape)


def may_end(suffix: str) -> bool:
    """Whether the key of any object of ours may end with `suffix`."""
    return _END_OF_NAME.fullmatch(suffix) is not None or any(
        one.endswith(suffix) or suffix.endswith(one) for one in _ENDS
    )
