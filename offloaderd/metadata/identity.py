"""Stored refusals of a topic whose metadata, bucket or source may be of another history.

Every process that deletes anything of a topic, or permits its deletion, calls `deletion_refused` first. Reads from the
source check `source_refused`; reads of offloaded entries check nothing.
"""

from collections.abc import Iterable
from typing import NamedTuple

from offloaderd.core.errors import Conflict, IdentityRefused
from offloaderd.core.model import TopicName
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import identity as identity_record
from offloaderd.metadata.records.identity import Deployment, Refusal, TopicIdentityRecord


class Stored(NamedTuple):
    """A topic's record, and its node's version; None without a node."""

    record: TopicIdentityRecord
    version: int | None


async def load(store: MetadataStore, topic: TopicName) -> Stored:
    """Read a topic's record. Raises CorruptData, Transient."""
    path = paths.identity(topic)
    node = await nodes.node(store, path)
    if node is None:
        return Stored(TopicIdentityRecord(), None)
    return Stored(identity_record.decode(node.value, path=path), node.version)


async def deletion_refused(store: MetadataStore, topic: TopicName) -> str:
    """Return why deletions of a topic's data, and grants, are refused; empty if they are not. Reads the node anew.

    Raises CorruptData and Transient; the caller then deletes nothing.
    """
    refusals = (await load(store, topic)).record.refusals
    return "; ".join(f"{one} ({one.hint})" for one in refusals)


def source_refused(refusals: Iterable[Refusal]) -> IdentityRefused | None:
    """Return the error for readers of a source that may have entries of another history; None without a refusal."""
    found = [one for one in refusals if one.kind in identity_record.OF_SOURCE]
    if not found:
        return None
    return IdentityRefused(
        f"the ledger source is refused ({'; '.join(map(str, found))}): only what is offloaded is read",
        hint=found[0].hint,
    )


async def deployment(store: MetadataStore) -> Deployment | None:
    """Read the deployment's record; None if there is none yet. Raises CorruptData, Transient."""
    return await nodes.record(store, paths.IDENTITY, identity_record.decode_deployment)


async def ensure_deployment(store: MetadataStore, made: Deployment) -> Deployment:
    """Record a deployment unless another call was first; return the recorded one. Raises CorruptData, Transient."""
    while (found := await deployment(store)) is None:
        try:
            await store.create(paths.IDENTITY, identity_record.encode_deployment(made))
        except Conflict:
            continue
    return found
