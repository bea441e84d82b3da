"""Reads of the nodes of a topic's map: one pass each, without consistency between the nodes.

A node that is deleted during a pass is left out: the caller repeats the pass until nothing changes.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TypeVar

from offloaderd.core.aio import both, each
from offloaderd.core.errors import NotFound, Transient
from offloaderd.core.model import Loss, TopicName
from offloaderd.metadata import paths
from offloaderd.metadata.pieces import StoredContext
from offloaderd.metadata.port import MetadataStore, Versioned
from offloaderd.metadata.records import codec, context
from offloaderd.metadata.records import loss as loss_record
from offloaderd.metadata.records.context import Piece

T = TypeVar("T")


class Readable(Protocol):
    """What gives nodes: a store, or the ZooKeeper of a Pulsar cluster."""

    async def get(self, path: str) -> Versioned:
        """Return a node's value and version. Raises NotFound."""
        ...


READ_TRIES = 10
"""Number of times that a context, or the losses, are read while they change."""


async def ledger_ids(store: MetadataStore, topic: TopicName) -> list[int]:
    """Return the ledgers that have an offload context, in no order. Raises CorruptData for a node that is no ledger."""
    folder = paths.ledgers(topic)
    names = await store.children(folder)
    for name in names:
        if not (name.isascii() and name.isdecimal() and str(int(name)) == name):
            codec.corrupt(f"{folder}/{name}", "a ledger id as the node's name", repr(name))
    return [int(name) for name in names]


async def contexts(
    store: MetadataStore,
    topic: TopicName,
    known: Mapping[int, StoredContext] = MappingProxyType({}),
    *,
    only: Sequence[int] | None = None,
) -> dict[int, StoredContext]:
    """Read the ledgers' offload contexts by ledger id; pieces of one that is as in `known` are not read again.

    `only` names the ledgers to read, without which all are: the known ones beside the list of them. Raises CorruptData
    for a node that is no ledger, Transient for a context that changes faster than it can be read.
    """

    async def read(ledger_id: int) -> StoredContext | None:
        return await stored_context(store, paths.ledger(topic, ledger_id), known.get(ledger_id))

    async def read_all(wanted: Sequence[int]) -> dict[int, StoredContext]:
        found = await each(wanted, read)
        return {ledger_id: one for ledger_id, one in zip(wanted, found, strict=True) if one is not None}

    if only is not None:
        return await read_all(only)
    listed, there = await both(ledger_ids(store, topic), read_all(list(known)))
    there |= await read_all([one for one in listed if one not in known])
    return {ledger_id: there[ledger_id] for ledger_id in listed if ledger_id in there}


async def stored_context(store: MetadataStore, path: str, known: StoredContext | None = None) -> StoredContext | None:
    """Read one ledger's context with its pieces as of one moment; None if there is none. Raises CorruptData, Transient.

    A change of a piece writes the context's node as well: while the node is unchanged, so are its pieces.
    """

    async def read(piece: Piece) -> Versioned | None:
        return await node(store, f"{path}/{piece.number}")

    found = await node(store, path)
    for _ in range(READ_TRIES):
        if found is None:
            return None
        table = context.pieces_of(found.value, path=path)
        if not table:
            return StoredContext(found.value, found.version)
        if known is not None and (known.value, known.version) == (found.value, found.version):
            return known
        read_before, pieces = found, await each(table, read)
        found = await node(store, path)
        if found == read_before:
            there = {one.number: piece for one, piece in zip(table, pieces, strict=True) if piece is not None}
            return StoredContext(found.value, found.version, MappingProxyType(there))
    raise Transient(f"{path} changes faster than it can be read")


async def losses(store: MetadataStore, topic: TopicName) -> dict[Loss, str]:
    """Read the lost ranges and their nodes' names; one that a wider one is just replacing may be read beside it.

    If one that was listed is missing, a wider one may have replaced it, so they are listed anew. Raises CorruptData,
    Transient.
    """
    folder = paths.losses(topic)
    for _ in range(READ_TRIES):
        names = await store.children(folder)
        found = await each(names, lambda name: record(store, f"{folder}/{name}", loss_record.decode))
        there = {one: name for one, name in zip(found, names, strict=True) if one is not None}
        if None not in found:
            return there
    raise Transient(f"{folder} changes faster than it can be read")


async def record(store: MetadataStore, path: str, decode: Callable[..., T]) -> T | None:
    """Return a node's content as `decode` reads it; None if there is no node. Raises CorruptData."""
    found = await node(store, path)
    return decode(found.value, path=path) if found is not None else None


async def node(store: Readable, path: str) -> Versioned | None:
    """Read a node; None if there is none."""
    try:
        return await store.get(path)
    except NotFound:
        return None


async def topic_folders(store: MetadataStore) -> list[str]:
    """Return the folders of all topics, and of everything else beside them. Raises Transient."""
    folders = [paths.TOPICS]
    for _ in ("tenant", "namespace", "domain", "topic"):
        folders = await below(store, folders)
    return folders


async def below(store: MetadataStore, folders: Sequence[str]) -> list[str]:
    """Return the nodes below all of these folders, in order. Raises Transient."""
    names = await each(folders, store.children)
    return [f"{folder}/{name}" for folder, found in zip(folders, names, strict=True) for name in found]
