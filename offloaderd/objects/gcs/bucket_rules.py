"""Life-cycle rules and versions of a bucket, from Google's answers.

Rules have no names and are named by their place in the list. What deletes in the folder of uploads ends uploads,
because parts are objects. A retention policy or a hold of the bucket refuses their deletion too.
Source: docs.cloud.google.com/storage/docs/lifecycle (read 2026-11).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from offloaderd.objects.gcs.uploads import ROOT
from offloaderd.objects.life_cycle import DAY_S, LifeCycleRule, Versioning

_OF_VERSIONS = ("numNewerVersions", "daysSinceNoncurrentTime", "noncurrentTimeBefore")
"""Conditions that no current object fulfils."""


def rules_of(bucket: Mapping[str, Any]) -> list[LifeCycleRule]:
    """Return the rules of a bucket's description, one for each prefix."""
    rules = bucket.get("lifecycle", {}).get("rule", [])
    return [one for number, rule in enumerate(rules, start=1) for one in _rules(rule, f"number {number}")]


def versioning_of(bucket: Mapping[str, Any]) -> Versioning:
    """Return whether a bucket keeps old versions, or deleted objects."""
    kept_s = int(bucket.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
    enabled = bool(bucket.get("versioning", {}).get("enabled", False))
    return Versioning(enabled=enabled, soft_delete_s=kept_s, locked=_locked(bucket))


def _locked(bucket: Mapping[str, Any]) -> str:
    """Return what keeps new objects of a bucket from being deleted; empty if nothing does."""
    found = []
    if retained_s := int(bucket.get("retentionPolicy", {}).get("retentionPeriod", 0)):
        found.append(f"a retention policy of {retained_s / DAY_S:.3g} days")
    if bucket.get("defaultEventBasedHold"):
        found.append("a hold on every new object")
    return " and ".join(found)


def _rules(rule: Mapping[str, Any], name: str) -> Iterator[LifeCycleRule]:
    action, condition = rule.get("action", {}), rule.get("condition", {})
    kind = action.get("type", "")
    old = condition.get("isLive") is False or any(one in condition for one in _OF_VERSIONS)
    for prefix in condition.get("matchesPrefix") or [""]:
        one = LifeCycleRule(name=name, prefix=prefix, suffixes=tuple(condition.get("matchesSuffix") or ()))
        if kind == "SetStorageClass" and not old:
            yield replace(one, moves={action.get("storageClass", ""): _when(condition)})
        elif kind == "Delete" and old:
            yield replace(one, ends_versions=True)
        elif kind == "Delete":
            if prefix.startswith(ROOT) or ROOT.startswith(prefix):
                below, days = prefix.removeprefix(ROOT[: len(prefix)]), int(condition.get("age", 0))
                yield replace(one, prefix=below, ends_uploads_days=days)
            if not prefix.startswith(ROOT):
                yield replace(one, expires=_when(condition))


def _when(condition: Mapping[str, Any]) -> str:
    """Return when a rule acts."""
    if "age" in condition:
        return f"after {condition['age']} days"
    for name in ("createdBefore", "customTimeBefore"):
        if name in condition:
            return f"from before {condition[name]}"
    return "at once"
