"""Life-cycle rules and versions of a bucket, from Google's answers.

Rules have no names and are named by their place in the list. What deletes below the folder of uploads ends uploads,
because parts are objects. Source: docs.cloud.google.com/storage/docs/lifecycle (read 2026-11).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from offloaderd.objects.gcs.uploads import ROOT
from offloaderd.objects.life_cycle import LifeCycleRule, Versioning

_OF_VERSIONS = ("numNewerVersions", "daysSinceNoncurrentTime", "noncurrentTimeBefore")
"""Conditions that no current object fulfils."""


def rules_of(bucket: Mapping[str, Any]) -> list[LifeCycleRule]:
    """Return the rules of a bucket's description, one for each prefix."""
    rules = bucket.get("lifecycle", {}).get("rule", [])
    return [one for number, rule in enumerate(rules, start=1) for one in _rules(rule, f"number {number}")]


def versioning_of(bucket: Mapping[str, Any]) -> Versioning:
    """Return whether a bucket keeps old versions, or deleted objects."""
    kept_s = int(bucket.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
    return Versioning(enabled=bool(bucket.get("versioning", {}).get("enabled", False)), soft_delete_s=kept_s)


def _rules(rule: Mapping[str, Any], name: str) -> Iterator[LifeCycleRule]:
    action, condition = rule.get("action", {}), rule.get("condition", {})
    kind = action.get("type", "")
    old = condition.get("isLive") is False or any(one in condition for one in _OF_VERSIONS)
    for prefix in condition.get("matchesPrefix") or [""]:
        if kind == "SetStorageClass" and not old:
            yield LifeCycleRule(name=name, prefix=prefix, moves={action.get("storageClass", ""): _when(condition)})
        elif kind == "Delete" and old:
            yield LifeCycleRule(name=name, prefix=prefix, ends_versions=True)
        elif kind == "Delete" and prefix.startswith(ROOT):
            days = int(condition.get("age", 0))
            yield LifeCycleRule(name=name, prefix=prefix.removeprefix(ROOT), ends_uploads_days=days)
        elif kind == "Delete":
            yield LifeCycleRule(name=name, prefix=prefix, expires=_when(condition))


def _when(condition: Mapping[str, Any]) -> str:
    """Return when a rule acts."""
    if "age" in condition:
        return f"after {condition['age']} days"
    for name in ("createdBefore", "customTimeBefore"):
        if name in condition:
            return f"from before {condition[name]}"
    return "at once"
