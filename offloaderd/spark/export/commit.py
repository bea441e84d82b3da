"""The record of an export's commits, and the changes of its columns from one run to the next.

A target has one record of all positions, that of the newest commit, stored with the data itself. Where every commit is
stored, as in a table, each has only the positions that it changed, before and after: with the newest record, all of any
commit follow from them.

Fields of columns come and go, and keep their types. In a table a column is identified by an id, and a user may rename
it.
"""

import json
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol, TypeVar

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import CorruptData, InvalidConfig, OffloaderError

P = TypeVar("P", bound=Hashable)
F = TypeVar("F")

VERSION = 2
"""Version 1 also had the files of the round."""
DIGITS = 10
VALUE = "value"
"""The field of a source with the type of its values, as Spark writes it in a table's definition."""

DELETED = "_deleted"
"""The column of a round that says, for a target with a key, that the row of the key is to go."""
SMALL_FILES, SMALL_BYTES = 8, 32 * 1024 * 1024
"""Small files of a partition from which on they are joined, and the bytes below which one is small."""
JOINED_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of files that are joined in memory at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The state of a target: its source, and `staging`, the folder to which the last round was written.

    `rows` are those of the last round, `apart` all messages of all rounds that the target does not have; of dead
    letters, the number of versions of the schema by which they are none.
    """

    number: int
    source: dict[str, str]
    positions: dict[str, str]
    staging: str = ""
    rows: int = 0
    apart: int = 0

    def is_same(self, other: "Commit") -> bool:
        """Return whether it is the same commit; its source may have gained fields since."""
        return (self.number, self.staging) == (other.number, other.staging)

    def encode(self) -> str:
        """Return the record."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "apart" or self.apart}
        return json.dumps({"version": VERSION, **fields}, indent=1)

    def following(self, staging: str, positions: Mapping[str, str], rows: int, apart: int | None = None) -> "Commit":
        """Return the commit after this one."""
        apart = self.apart if apart is None else apart
        return replace(self, number=self.number + 1, positions=dict(positions), staging=staging, rows=rows, apart=apart)

    def encode_move(self, last: "Commit") -> str:
        """Return the record of the changes since the commit before."""
        moved = {
            name: [last.positions.get(name), self.positions.get(name)]
            for name in {**last.positions, **self.positions}
            if last.positions.get(name) != self.positions.get(name)
        }
        step = {"version": VERSION, "number": self.number, "staging": self.staging, "rows": self.rows, "moved": moved}
        return json.dumps({**step, **({"apart": self.apart} if self.apart else {})})

    def checked(self, source: Mapping[str, str], target: str) -> "Commit":
        """Return the commit if it is of this source, which may have gained fields. Raises InvalidConfig."""
        if self.source == source:
            return self
        old, new = self.source.get(VALUE), source.get(VALUE)
        if old is None or new is None or {**self.source, VALUE: ""} != {**source, VALUE: ""}:
            known = ", ".join(f"{name} {value}" for name, value in self.source.items())
            raise InvalidConfig(f"{target} is an export of something else: {known}", hint="name another target")
        wide = widened(DataType.fromDDL(old), DataType.fromDDL(new)).simpleString()
        return replace(self, source={**self.source, VALUE: wide})

    def next_name(self) -> str:
        """Return a new name for the files of the next round."""
        return f"{self.number + 1:0{DIGITS}}-{SystemClock().uuid()}"


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What a run of upkeep has done: files joined, and files or versions deleted."""

    joined: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The changes of one commit: `moved` has the positions before and after it; None: there was none."""

    number: int
    staging: str
    rows: int
    moved: dict[str, tuple[str | None, str | None]]
    apart: int = 0

    def of(self, source: dict[str, str], positions: dict[str, str]) -> Commit:
        """Return the commit with its source and all of its positions."""
        return Commit(
            number=self.number,
            source=source,
            positions=positions,
            staging=self.staging,
            rows=self.rows,
            apart=self.apart,
        )

    def undone(self, positions: Mapping[str, str]) -> dict[str, str]:
        """Return the positions as they were before it."""
        earlier = {**positions, **{name: before for name, (before, _) in self.moved.items()}}
        return {name: at for name, at in earlier.items() if at is not None}


def decode(text: str, path: str) -> Commit:
    """Read a record. Raises CorruptData."""
    found = decode_move(text, path)
    if isinstance(found, Commit):
        return found
    raise _corrupt(path, "the record of all positions", "that of a change")


def decode_move(text: str, path: str) -> Move | Commit:
    """Read the changes of a commit; a record of an earlier release has all positions. Raises CorruptData."""
    try:
        found = json.loads(text)
        if (version := found.pop("version")) > VERSION:
            raise _corrupt(path, f"version {VERSION} or older", f"version {version}")
        if "moved" in found:
            moved = {name: (before, after) for name, (before, after) in found.pop("moved").items()}
            return Move(**found, moved=moved)
        found.pop("files", None)
        return Commit(**found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _corrupt(path, "the record of a commit", error) from None


def _corrupt(path: str, expected: str, found: object) -> CorruptData:
    return CorruptData(key=path, offset=0, expected=expected, found=found)


class ExportTarget(Protocol):
    """The target of an export: it takes the files of a round together with the positions that they reach."""

    target: str
    """Its name in messages."""

    def last(self, source: dict[str, str]) -> Commit:
        """Return the last commit, number 0 for none; changes nothing.

        Raises InvalidConfig for a target of something else, CorruptData, and OffloaderError when it cannot be read.
        """
        ...

    def recover(self, source: dict[str, str]) -> Commit:
        """Complete the last commit after a crash, delete the rest of others, and return it. Raises as `last`."""
        ...

    def named(self, columns: StructType) -> StructType:
        """Return the columns of the next round with their names in the target, in the same order."""
        ...

    def staging(self, last: Commit) -> str:
        """Return the URL of a new folder for the files of the round after a commit."""
        ...

    def commit(
        self, last: Commit, staging: str, positions: dict[str, str], rows: int, apart: int | None = None
    ) -> Commit:
        """Add the files in staging to the target, with the positions that they reach; return the new commit.

        `apart`: see Commit; None: as before.

        Raises Conflict when another export has committed since, OffloaderError when it fails.
        """
        ...


def first_line(error: Exception) -> str:
    """Return the name of a library's error and the first line of what it says; others are traces of native code."""
    said = str(error).strip()
    return f"{type(error).__name__} {said.splitlines()[0]}" if said else type(error).__name__


@contextmanager
def as_target_error(target: str) -> Iterator[None]:
    """Raise errors of a table's library as OffloaderError with the target's name."""
    try:
        yield
    except OffloaderError:
        raise
    except Exception as error:  # the libraries raise anything
        hint = "is it there, with a right to read and write?"
        raise OffloaderError(f"{target}: {first_line(error)}", hint=hint) from error


def check_written(made: Commit, files: Sequence[str]) -> None:
    """Check that the rows of a commit are in files. Raises CorruptData for rows without any: they would be lost."""
    if made.rows and not files:
        raise CorruptData(key=made.staging, offset=0, expected=f"files with {made.rows:,} rows", found="none")


def to_join(files: Iterable[tuple[P, F, int]]) -> Iterator[tuple[P, list[F]]]:
    """Yield files of one partition that are to be joined, as many as fit into memory at a time.

    `files`: the partition, the file, its bytes. Few files are left until there are more.
    """
    small: dict[P, list[tuple[F, int]]] = {}
    for partition, file, size_bytes in files:
        if size_bytes < SMALL_BYTES:
            small.setdefault(partition, []).append((file, size_bytes))
    for partition, found in small.items():
        taken: list[F] = []
        taken_bytes = 0
        for file, size_bytes in found:
            if taken_bytes + size_bytes > JOINED_BYTES_MAX:
                if len(taken) >= SMALL_FILES:
                    yield partition, taken
                taken, taken_bytes = [], 0
            taken.append(file)
            taken_bytes += size_bytes
        if len(taken) >= SMALL_FILES:
            yield partition, taken


class KeptTable(ExportTarget, Protocol):
    """A target that is a table: its columns change with the topic's schema, and it needs upkeep."""

    def fit(self, columns: StructType, aliases: Mapping[str, Sequence[str]]) -> None:
        """Have these columns from the next round on; change nothing yet.

        Raises InvalidConfig, with its place, for a column that the table has with another type, and as `last`.
        """
        ...

    def commit(
        self,
        last: Commit,
        staging: str,
        positions: dict[str, str],
        rows: int,
        apart: int | None = None,
        files: Sequence[str] | None = None,
    ) -> Commit:
        """See ExportTarget. `files`: those of the round, by their paths in staging, and others go; None: all there."""
        ...

    def discard(self, staging: str) -> None:
        """Delete the files of a round that was never begun to be committed."""
        ...

    def upkeep(self, keep_s: float) -> Upkeep:
        """Join small files, and delete what only versions of the table need that are older than `keep_s`.

        Raises OffloaderError when it fails; the table is as before.
        """
        ...


def widened(old: DataType, new: DataType, at: str = "value") -> DataType:
    """Return a type with the fields of both; a field that one of them lacks is null in its rows.

    Raises InvalidConfig, with its place, for a field of another type: files of both could not be read together.
    """
    if isinstance(old, StructType) and isinstance(new, StructType):
        fields = {field.name: field for field in new.fields}
        kept = [
            StructField(one.name, widened(one.dataType, fields[one.name].dataType, f"{at}.{one.name}"))
            if one.name in fields
            else one
            for one in old.fields
        ]
        return StructType([*kept, *(one for one in new.fields if one.name not in old.names)])
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return ArrayType(widened(old.elementType, new.elementType, f"{at}[]"))
    if isinstance(old, MapType) and isinstance(new, MapType) and old.keyType == new.keyType:
        return MapType(old.keyType, widened(old.valueType, new.valueType, f"{at}{{}}"))
    if old != new:
        raise InvalidConfig(
            f"the schema has {at} as {new.simpleString()}, and what is exported has it as {old.simpleString()}",
            hint="fields may be added and left out; for other types of fields that stay, name another target",
        )
    return old


_WIDER = {("int", "bigint"), ("float", "double")}
"""Types that a table may have instead of those of a round, as it takes their values unchanged."""


def fitted(columns: StructType, table: StructType, *, promotes: bool = False) -> StructType:
    """Return the columns of a round, with the wider type where a table has it. `promotes`: that of a table may widen.

    Raises InvalidConfig, with its place, for a column that the table has with another type.
    """

    def kind(mine: DataType, there: DataType, at: str) -> DataType:
        if isinstance(mine, StructType) and isinstance(there, StructType):
            return struct(mine, there, f"{at}.")
        if isinstance(mine, ArrayType) and isinstance(there, ArrayType):
            return ArrayType(kind(mine.elementType, there.elementType, f"{at}[]"))
        if isinstance(mine, MapType) and isinstance(there, MapType):
            value = kind(mine.valueType, there.valueType, f"{at}{{}}")
            return MapType(kind(mine.keyType, there.keyType, f"{at} of a map"), value)
        names = mine.simpleString(), there.simpleString()
        if mine == there or names in _WIDER:
            return there
        if promotes and names[::-1] in _WIDER:
            return mine
        raise InvalidConfig(
            f"the schema has {at} as {mine.simpleString()}, and the table has it as {there.simpleString()}",
            hint="give the field another name in the schema, and no alias the table has, or write to another place",
        )

    def struct(mine: StructType, there: StructType, before: str) -> StructType:
        known = {one.name: one.dataType for one in there.fields}
        lower = {name.lower(): name for name in known}
        for one in mine.fields:
            if one.name not in known and (other := lower.get(one.name.lower())) is not None:
                raise InvalidConfig(
                    f"the schema has {before}{one.name}, and the table has {before}{other}",
                    hint="name the field otherwise than by capital letters; tables do not distinguish them",
                )
        return StructType(
            [
                StructField(one.name, kind(one.dataType, known[one.name], before + one.name))
                if one.name in known
                else one
                for one in mine.fields
            ]
        )

    return struct(columns, table, "")


NO_ALIASES: Mapping[str, Sequence[str]] = MappingProxyType({})
_ROOT = -1
"""What the columns of a table are inside of, as other fields are inside of one that has an id."""


class _Names:
    """The names that fields of a table have `now` and had `before`; both as `renamed` takes them."""

    def __init__(self, now: Mapping[str, int], before: Sequence[Mapping[str, int]]) -> None:
        self.places = {field_id: place for place, field_id in now.items()}
        self._ids: dict[tuple[int, str], list[int]] = {}
        self._folded: dict[tuple[int, str], int] = {}
        for schema in (*before, now):
            for place, field_id in schema.items():
                around, _, name = place.rpartition(".")
                if (inside := schema.get(around) if around else _ROOT) is None:
                    continue
                self._ids.setdefault((inside, name), []).append(field_id)
                if schema is now:
                    self._folded[inside, name.lower()] = field_id

    def name(self, field_id: int) -> str:
        """Return the name of a field now."""
        return self.places[field_id].rpartition(".")[2]

    def find(self, inside: int | None, name: str) -> int | None:
        """Return the id of the field that has a name inside of another one, or had it last."""
        ids = self._ids.get((inside, name), ()) if inside is not None else ()
        return next((one for one in reversed(ids) if one in self.places), None)

    def by_alias(
        self, inside: int | None, name: str, aliases: Sequence[str], taken: Collection[int | None]
    ) -> int | None:
        """Return the id of the field that has or had an alias of a new name, and none that is another's."""
        if inside is None or (inside, name) in self._ids:
            return None
        same = self._folded.get((inside, name.lower()))
        ids = (self.find(inside, one) for one in aliases)
        return next((one for one in ids if one is not None and one not in taken and same in {None, one}), None)


def renamed(
    columns: StructType,
    now: Mapping[str, int],
    before: Sequence[Mapping[str, int]],
    aliases: Mapping[str, Sequence[str]] = NO_ALIASES,
) -> tuple[StructType, dict[str, str]]:
    """Return columns with their names in a table `now`, and the fields that are to be renamed there.

    `before` are its earlier schemas, the newest last; a schema has the id of each field by its place: its name after
    those of the fields around it, joined by dots. `aliases` are earlier names by places in `columns`. What the table
    has by one comes back by its place there, with the name that it is to have, unless a user gave it another. A field
    that is not in the table keeps its name; so does one whose name the table had before: files that have no ids would
    give its values to the renamed field. Raises InvalidConfig for two fields that are one column of the table.
    """
    names, moves = _Names(now, before), dict[str, str]()

    def kind(of: DataType, was: str, inside: int | None) -> DataType:
        if isinstance(of, StructType):
            return struct(of, f"{was}.", inside)
        if isinstance(of, ArrayType):
            return ArrayType(kind(of.elementType, f"{was}.element", names.find(inside, "element")))
        if isinstance(of, MapType):
            return MapType(of.keyType, kind(of.valueType, f"{was}.value", names.find(inside, "value")))
        return of

    def struct(of: StructType, was: str, inside: int | None) -> StructType:
        ids = {name: names.find(inside, name) for name in of.names}
        for name in [name for name, found in ids.items() if found is None]:
            earlier = aliases.get(was + name, ())
            ids[name] = found = names.by_alias(inside, name, earlier, ids.values())
            if found is not None and names.name(found) in earlier:
                moves[names.places[found]] = name
        fields: dict[str, StructField] = {}
        for one in of.fields:
            found = ids[one.name]
            called = one.name if found is None else names.name(found)
            if called in fields:
                both = " and ".join(was + name for name in of.names if ids[name] == found)
                raise InvalidConfig(
                    f"the schema has {both}, and both are names of one column of the table, now or before: {called}",
                    hint="give the field that is new a name that the column never had, or write to another place",
                )
            fields[called] = StructField(called, kind(one.dataType, was + one.name, found))
        return StructType(list(fields.values()))

    return struct(columns, "", _ROOT), moves
