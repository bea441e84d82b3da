"""The nodes that a topic's map is made of, read as they are: one pass each, without a promise about what lies between.

A node that vanishes during a pass is left out: the caller passes again until nothing changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.errors import NotFound
from offloaderd.metadata import paths
from offloaderd.metadata.each import each
from offloaderd.metadata.records import codec
from offloaderd.metadata.records import loss as loss_record

if TYPE_CHECKING:
    from offloaderd.metadata.port import MetadataStore, Versioned
    from offloaderd.model import Loss, TopicName


async def contexts(store: MetadataStore, topic: TopicName) -> dict[int, Versioned]:
    """Read the ledgers' offload contexts by ledger id. Raises CorruptData for a node that is no ledger."""
    folder = paths.ledgers(topic)
    names = await store.children(folder)
    for name in names:
        if not (name.isascii() and name.isdecimal() and str(int(name)) == name):
            codec.corrupt(f"{folder}/{name}", "a ledger id as the node's name", repr(name))

    async def read(name: str) -> Versioned | None:
        return await node(store, f"{folder}/{name}")

    found = await each(names, read)
    return {int(name): one for name, one in zip(names, found, strict=True) if one is not None}


async def losses(store: MetadataStore, topic: TopicName) -> list[Loss]:
    """Read what was lost; one that is being taken in by a wider one is read with that one or before."""

    async def read(name: str) -> Loss | None:
        path = f"{paths.losses(topic)}/{name}"
        found = await node(store, path)
        return loss_record.decode(found.value, path=path) if found is not None else None

    return [one for one in await each(await store.children(paths.losses(topic)), read) if one is not None]


async def node(store: MetadataStore, path: str) -> Versioned | None:
    """Read a node, None when it is not there."""
    try:
        return await store.get(path)
    except NotFound:
        return None
