"""A ledger source of names alone: what a test says is there, with failures on demand and every request counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offloaderd.core.model import TopicName

if TYPE_CHECKING:
    from offloaderd.core.errors import OffloaderError


@dataclass
class TopicSource:
    """Topics by name, `others` by full name; `reasons` of reserved ones, `failures` of scopes (tenant, namespace)."""

    names: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    failures: dict[tuple[str | None, str | None], OffloaderError] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    requests: Counter[Any] = field(default_factory=Counter)

    async def topics(self, *, tenant: str | None = None, namespace: str | None = None) -> list[TopicName]:
        """List what is in the scope."""
        self.requests[tenant, namespace] += 1
        await asyncio.sleep(0)  # noqa: TID251 - as a real source, gives others a turn
        if (tenant, namespace) in self.failures:
            raise self.failures[tenant, namespace]
        found = map(TopicName.parse, self.names)
        return sorted(
            one for one in found if tenant in {None, one.tenant} and namespace in {None, one.namespace}
        )  # fmt: skip

    async def not_covered(self, *, tenant: str | None = None, namespace: str | None = None) -> list[str]:
        """List what of other domains is in the scope."""
        self.requests["not covered"] += 1
        return sorted(one for one in self.others if f"//{tenant}/{namespace}/" in one)

    async def reserved(self, topic: TopicName) -> str | None:
        """Say the reason."""
        self.requests["reserved"] += 1
        await asyncio.sleep(0)  # noqa: TID251 - as a real source, gives others a turn
        return self.reasons.get(f"{topic.tenant}/{topic.namespace}/{topic.local}")
