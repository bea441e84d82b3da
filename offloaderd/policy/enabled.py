"""Topics that have a policy, and those that are enabled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from offloaderd.core.aio.each import each
from offloaderd.core.errors import CorruptData, InvalidInput, NotFound
from offloaderd.metadata import paths
from offloaderd.policy.records import topic as policy
from offloaderd.policy.records.topic import TopicPolicy

if TYPE_CHECKING:
    from offloaderd.core.model import TopicName
    from offloaderd.metadata.port import MetadataStore

log = structlog.get_logger(__name__)


async def topic_policies(store: MetadataStore) -> dict[TopicName, TopicPolicy | CorruptData]:
    """Return every topic that has a policy, enabled or not; one that cannot be read is there with its error."""
    folders = [paths.TOPICS]
    for _ in ("tenant", "namespace", "domain", "topic"):
        names = await each(folders, store.children)
        folders = [f"{folder}/{name}" for folder, below in zip(folders, names, strict=True) for name in below]
    topics = []
    for folder in folders:
        try:
            topics.append(paths.parse_topic(folder))
        except InvalidInput:
            log.warning("metadata.foreign_node", path=folder, hint="no topic has this name; delete the node")

    async def read(path: str) -> TopicPolicy | CorruptData | None:
        try:
            return policy.decode((await store.get(path)).value, path=path)
        except NotFound:
            return None
        except CorruptData as error:
            return error

    found = await each([paths.policy(topic) for topic in topics], read)
    return {topic: one for topic, one in zip(topics, found, strict=True) if one is not None}


async def enabled_topics(store: MetadataStore) -> list[TopicName]:
    """Return the topics whose policy says that they are offloaded, in order; damaged policies are left out."""
    policies = await topic_policies(store)
    return sorted(topic for topic, found in policies.items() if isinstance(found, TopicPolicy) and found.active)
