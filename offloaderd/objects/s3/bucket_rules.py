"""Life-cycle rules and versions of a bucket, from S3's answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from offloaderd.objects.life_cycle import LifeCycleRule, Versioning

if TYPE_CHECKING:
    from types_aiobotocore_s3.type_defs import GetBucketVersioningOutputTypeDef

NO_RULES = "NoSuchLifecycleConfiguration"
"""S3's code for a bucket without rules."""


def rules_of(answer: Mapping[str, Any]) -> list[LifeCycleRule]:
    """Return the enabled rules of an answer; one without an id is named by its place in the list."""
    rules = enumerate(answer.get("Rules", []), start=1)
    return [_rule(one, number) for number, one in rules if one.get("Status") == "Enabled"]


def _rule(rule: Mapping[str, Any], number: int) -> LifeCycleRule:
    filtered = rule.get("Filter", {})
    both = filtered.get("And", {})
    tags = [*both.get("Tags", []), *([filtered["Tag"]] if "Tag" in filtered else [])]
    return LifeCycleRule(
        name=rule.get("ID") or f"number {number}",
        prefix=rule.get("Prefix") or filtered.get("Prefix") or both.get("Prefix") or "",
        tags={tag["Key"]: tag["Value"] for tag in tags},
        expires=_when(rule.get("Expiration", {})),
        moves=dict(_moves(rule)),
        ends_uploads_days=rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation"),
        ends_versions="NoncurrentVersionExpiration" in rule,
    )


def _moves(rule: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for one in rule.get("Transitions", []):
        yield one.get("StorageClass", ""), _when(one) or "at once"


def _when(action: Mapping[str, Any]) -> str:
    """Return when an action happens; empty for none, as for one that deletes markers alone."""
    if "Days" in action:
        return f"after {action['Days']} days"
    return f"on {action['Date']:%Y-%m-%d}" if "Date" in action else ""


def versioning_of(answer: GetBucketVersioningOutputTypeDef) -> Versioning:
    """Return whether a bucket keeps old versions."""
    status = answer.get("Status", "")
    return Versioning(enabled=status == "Enabled", suspended=status == "Suspended")
