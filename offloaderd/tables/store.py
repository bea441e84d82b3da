"""Declarations and states of tables in the metadata store.

The application that writes the tables of a declaration holds an ephemeral node below it, so a second one leaves them
alone. That only saves work: it is the commit of a table that a slow application cannot make twice.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace

from offloaderd.core.aio import each
from offloaderd.core.errors import Conflict, CorruptData, NotFound
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.port import Check, Create, Delete, MetadataStore, Replace
from offloaderd.policy.store import ensure
from offloaderd.tables import declaration
from offloaderd.tables.declaration import Declaration, check_number

VERSION = 1
TABLES_MAX = 1000
"""Tables of a declaration whose state is kept, at most 900 bytes each; those that fail or lag most."""
STATES_BYTES_MAX = 1_000_000
"""Most bytes of the states with positions, and why tables wait; of more these are left out. A node has no more room."""
ADDED = {"positions", "waits", "history_entries"}
"""Fields of a state that records of earlier releases lack."""
WAITS_CHARS = 500
"""Of the reason why a table waits, which may name each of many partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table: where it stands, how far it is behind what is offloaded, and why it does not go on.

    `lag_s` counts from when the oldest segment that it lacks was offloaded, whatever holds the table back; `waits` is
    why it cannot have all of them yet, empty if it can. `apart` are rows that went to dead letters or were skipped.
    `positions` has the last entry up to which all is in the table, by the local name of the topic or partition. With
    the history beside what is new the lag is that of what is new, and `history_entries` are left of the history.
    """

    table: str
    topic: str
    rows: int = 0
    apart: int = 0
    lag_s: float = 0.0
    lag_entries: int = 0
    committed_ms: int = 0
    error: str = ""
    waits: str = ""
    positions: Mapping[str, str] = field(default_factory=dict)
    history_entries: int = 0

    @property
    def numbers(self) -> tuple[int, ...]:
        """All of its whole numbers."""
        return self.rows, self.apart, self.lag_entries, self.committed_ms, self.history_entries


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """What an application said of the tables of a declaration at a time; no table before the first."""

    writer: str = ""
    at_ms: int = 0
    tables: Sequence[TableState] = ()

    def by(self, now_ms: int) -> Sequence[TableState]:
        """Return the tables with their lag by now: entries that one lacks have got older since.

        Not in it is what was offloaded since then, so a table that lacked nothing has no lag.
        """
        since_s = max(0, now_ms - self.at_ms) / 1000
        return [replace(one, lag_s=one.lag_s + since_s) if one.lag_entries else one for one in self.tables]

    @property
    def failing(self) -> int:
        """How many tables do not go on."""
        return sum(bool(one.error) for one in self.tables)

    def lag_s(self, now_ms: int) -> float:
        """Return the lag (seconds) of the table that lags most by now."""
        return max((one.lag_s for one in self.by(now_ms)), default=0.0)


async def create(store: MetadataStore, declared: Declaration) -> None:
    """Declare tables. Raises InvalidInput, Conflict for a name that is taken, or a table that has one, Transient."""
    declared.checked()
    for name, other in (await load(store)).items():
        if isinstance(other, Declaration) and name != declared.name and declared.shares_tables(other):
            raise Conflict(
                f"tables {name} write {other.topics} to {other.to} already",
                hint="name another place, or drop them first; two writers of a table only hinder each other",
            )
    await ensure(store, paths.TABLES)
    path, content = paths.table(declared.name), declaration.encode(declared)
    try:
        await store.create(path, content)
    except Conflict:
        found = await nodes.node(store, path)
        if found is not None and found.value == content:
            return  # an earlier try, whose answer was lost
        raise Conflict(
            f"tables {declared.name} are declared already",
            hint=f"see offloadctl tables show {declared.name}; take another --name, or drop it first",
        ) from None


async def drop(store: MetadataStore, name: str) -> None:
    """Remove a declaration; its tables stay. Raises NotFound, Conflict while an application writes them, Transient."""
    found = await store.get(paths.table(name))
    if held := await writer(store, name):
        raise Conflict(f"{held} writes the tables of {name}", hint="stop that application first")
    state = await nodes.node(store, paths.table_state(name))
    below = [Delete(paths.table_state(name), state.version)] if state is not None else []
    try:
        await store.transact([*below, Delete(paths.table(name), found.version)])
    except NotFound:
        raise Conflict(f"tables {name} changed meanwhile", hint="look, and drop them again") from None


async def load(store: MetadataStore) -> dict[str, Declaration | CorruptData]:
    """Return all declarations by their names, and why one cannot be read. Raises Transient."""

    async def read(name: str) -> Declaration | CorruptData | None:
        try:
            return await nodes.record(store, f"{paths.TABLES}/{name}", declaration.decode)
        except CorruptData as error:
            return error

    names = await store.children(paths.TABLES)
    found = await each(names, read)
    return {paths.name_of(name): one for name, one in sorted(zip(names, found, strict=True)) if one is not None}


async def named(store: MetadataStore, name: str) -> Declaration:
    """Return a declaration. Raises NotFound, CorruptData, Transient."""
    found = await nodes.record(store, paths.table(name), declaration.decode)
    if found is None:
        raise NotFound(f"no tables {name} are declared", hint="`offloadctl tables list` shows those that are")
    return found


async def writer(store: MetadataStore, name: str) -> str:
    """Return the id of the application that writes the tables of a declaration, empty for none. Raises Transient."""
    held = await nodes.node(store, paths.table_writer(name))
    return held.value.decode(errors="replace") if held is not None else ""


async def hold(store: MetadataStore, name: str, me: str) -> str | None:
    """Hold the tables of a declaration until the session ends; return the id of another holder, None if held now.

    Raises NotFound for a declaration that is gone, Transient.
    """
    declared = await store.get(paths.table(name))
    path = paths.table_writer(name)
    for _ in range(2):
        if held := await writer(store, name):
            return held if held != me else None
        with suppress(Conflict):
            held_now = Create(path, me.encode(), ephemeral=True)
            await store.transact([Check(paths.table(name), declared.version), held_now])
    return "another application"


async def release(store: MetadataStore, name: str, me: str) -> None:
    """Give the tables of a declaration back, unless another holds them by now. Raises Transient."""
    held = await nodes.node(store, paths.table_writer(name))
    if held is not None and held.value == me.encode():
        with suppress(NotFound, Conflict):
            await store.delete(paths.table_writer(name), held.version)


async def put_states(store: MetadataStore, name: str, states: States) -> None:
    """Write what an application says of its tables, of very many those that lag most. Raises Transient, NotFound."""
    most = sorted(states.tables, key=lambda one: (not one.error, -one.lag_s, one.table))[:TABLES_MAX]
    content = _encoded(states, most)
    if len(content) > STATES_BYTES_MAX:
        content = _encoded(states, [replace(one, positions={}, waits="") for one in most])
    path, declared = paths.table_state(name), await store.get(paths.table(name))
    found = await nodes.node(store, path)
    written = Create(path, content) if found is None else Replace(path, content, found.version)
    with suppress(Conflict):  # another application, which holds them now, was first
        await store.transact([Check(paths.table(name), declared.version), written])


def _encoded(states: States, tables: Sequence[TableState]) -> bytes:
    head = {"version": VERSION, "writer": states.writer, "at_ms": states.at_ms}
    return json.dumps({**head, "tables": [asdict(one) for one in tables]}).encode()


async def states(store: MetadataStore, name: str) -> States:
    """Return what was last said of the tables of a declaration. Raises CorruptData, Transient."""
    return await nodes.record(store, paths.table_state(name), decode_states) or States()


def decode_states(data: bytes, *, path: str) -> States:
    """Read a node's content. Raises CorruptData, NewerRecord."""
    found = declaration.document(data, path=path, version=VERSION)
    names = [one.name for one in fields(TableState)]
    try:
        known = ({name: one[name] for name in names if name in one or name not in ADDED} for one in found["tables"])
        tables = [TableState(**one) for one in known]
        return _checked(States(writer=found["writer"], at_ms=found["at_ms"], tables=tables))
    except (KeyError, TypeError) as error:
        raise CorruptData(key=path, offset=0, expected="states of tables", found=error) from None


def _checked(states: States) -> States:
    """Return states. Raises TypeError for a number that is none."""
    for number in (states.at_ms, *(number for one in states.tables for number in one.numbers)):
        check_number(number)
    for one in states.tables:
        check_number(one.lag_s, whole=False)
    return states
