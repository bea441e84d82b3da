"""What is refused of a topic because its metadata, bucket or source may be of another history, as it is stored.

Whoever deletes anything of a topic, or permits its deletion, asks `deletion_refused` first, in whatever process.
Reads of what is offloaded never ask; who would give a reader something of the source asks `source_refused`.
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
    """A topic's record, and the version of its node; None when there is no node."""

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
    """Say why nothing of a topic may be deleted, nor its deletion be granted; empty: it may. Read fresh each time.

    Raises CorruptData and Transient: who does not know does not delete.
    """
    refusals = (await load(store, topic)).record.refusals
    return "; ".join(f"{one} ({one.hint})" for one in refusals)


def source_refused(refusals: Iterable[Refusal]) -> IdentityRefused | None:
    """Return why a topic's source may have entries of another history, as a reader is told; None: it has not."""
    found = [one for one in refusals if one.kind in identity_record.OF_SOURCE]
    if not found:
        return None
    return IdentityRefused(
        f"the ledger source is refused ({'; '.join(map(str, found))}): only what is offloaded is read",
        hint=found[0].hint,
    )


async def deployment(store: MetadataStore) -> Deployment | None:
    """Read which deployment the metadata are of; None before one was made. Raises CorruptData, Transient."""
    return await nodes.record(store, paths.IDENTITY, identity_record.decode_deployment)


async def ensure_deployment(store: MetadataStore, made: Deployment) -> Deployment:
    """Make the deployment what is said unless there is one; returns the one that there is then.

    Of several that are made at a time one wins. Raises CorruptData, Transient.
    """
    while (found := await deployment(store)) is None:
        try:
            await store.create(paths.IDENTITY, identity_record.encode_deployment(made))
        except Conflict:
            continue
    return found
