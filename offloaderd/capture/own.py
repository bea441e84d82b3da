"""What offloaderd itself keeps of topics and above them, and does not find in the bucket again.

That are policies, selections, quotas, declared tables, pauses, the floor of each topic, and revocations: a grant is
found anew by a verification, that an operator has forbidden one is not.
"""

from collections.abc import Iterable

from offloaderd.capture.cluster import Taken
from offloaderd.capture.records import Kind, node_value
from offloaderd.core.aio import each
from offloaderd.core.errors import CorruptData
from offloaderd.core.model import TopicName
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import grant


async def take(metadata: MetadataStore, topics: Iterable[TopicName], taken: Taken) -> None:
    """Add the nodes of these topics, and those above all topics. Raises Transient, Denied."""
    levels = await nodes.below(metadata, await nodes.below(metadata, [paths.NAMESPACE_POLICIES]))
    above = await nodes.below(metadata, [paths.SELECTIONS, paths.QUOTAS, paths.TABLES])
    wanted = sorted(topics)
    of_topics = [path(topic) for topic in wanted for path in (paths.policy, paths.floor)]
    for path, content in await _read(metadata, [paths.BROKER_POLICY, *levels, *above, *of_topics]):
        taken.records[Kind.NODE, path, ""] = node_value(content)
    grants = await nodes.below(metadata, [paths.grants(topic) for topic in wanted])
    for path, content in await _read(metadata, grants):
        try:
            revoked = grant.decode(content, path=path).revoked_ms
        except CorruptData as error:
            taken.problems.append(str(error))
            continue
        if revoked:
            taken.records[Kind.NODE, path, ""] = node_value(content)


async def _read(metadata: MetadataStore, wanted: list[str]) -> list[tuple[str, bytes]]:
    found = await each(wanted, lambda path: nodes.node(metadata, path))
    return [(path, one.value) for path, one in zip(wanted, found, strict=True) if one is not None]
