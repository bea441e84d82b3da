"""Old snapshots of a table of Iceberg, and files that nothing names: of expired snapshots, and of commits that failed.

The library expires snapshots, and leaves their files. Others are left where a writer died, or its commit was refused.
Such a file cannot be told from one of a commit that is under way, but by its age.

A file stays if the table names one with the same path below `data/` or `metadata/`, by whatever scheme, host and
folder in front: engines spell one place in different ways. Doubt deletes nothing: a listing, a list of manifests or a
manifest that cannot be read, a table that changes meanwhile, another table at the same place, a link to another one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import structlog
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import OffloaderError
from offloaderd.spark.export.commit import first_line

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.refs import SnapshotRef

log = structlog.get_logger(__name__)

ORPHAN_S_MIN = 3 * 86400.0
"""Age below which a file may be of a commit that is under way; `remove_orphan_files` of Iceberg has it by default."""
ORPHANS_MAX = 1000
"""Orphans that one run deletes at most; the next one takes others."""
_FOLDERS = ("data", "metadata")
_METADATA = ".metadata.json"
"""In the name of each file of metadata; a packed one ends otherwise, and does not say whose it is."""
_ENDS = (_METADATA, ".avro", ".parquet", ".orc", ".puffin", ".stats", "/_SUCCESS")
"""What writers of tables call their files; others are left to whoever put them there."""
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"')
_HEAD_BYTES = 4096
"""Of a file of metadata: writers put the table's id first."""


class _File(NamedTuple):
    at_ns: int
    name: str
    """Its path below the location of the table."""
    url: str
    size_bytes: int


def owns_files(table: Table) -> bool:
    """Return whether a table owns its files: gc.enabled=false says that others may name them."""
    return str(table.properties.get("gc.enabled", "true")).lower() != "false"


def expire(table: Table, older_ms: float) -> None:
    """Expire the snapshots that have not been the newest since a time (milliseconds since 1970).

    A reader may have begun as long as a snapshot was the newest, however old it is itself. Branches and tags stay, with
    as many snapshots as they say themselves. One that is moved meanwhile, as by a rollback, is an error of the library:
    a catalogue would drop it with its snapshot.
    """
    from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate  # noqa: PLC0415 - optional

    until = {one.snapshot_id: after.timestamp_ms for one, after in pairwise(table.metadata.snapshot_log)}
    kept = {found for one in table.refs().values() for found in _kept_by(table, one)}
    old = [one.snapshot_id for one in table.snapshots() if until.get(one.snapshot_id, one.timestamp_ms) < older_ms]
    if gone := [one for one in old if one not in kept]:
        refs = table.refs().items()
        asserted = tuple(
            AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": at.snapshot_id}) for name, at in refs
        )
        table.catalog.commit_table(table, asserted, (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone}),))


def _kept_by(table: Table, ref: SnapshotRef) -> Iterator[int]:
    """Yield the snapshots that a branch or tag keeps: its own, and those before it by the branch's own settings."""
    from pyiceberg.table.snapshots import ancestors_of  # noqa: PLC0415 - optional

    since_ms = SystemClock().wall_ms() - (ref.max_snapshot_age_ms or 0)
    for number, one in enumerate(ancestors_of(table.snapshot_by_id(ref.snapshot_id), table.metadata)):
        if number >= (ref.min_snapshots_to_keep or 1) and one.timestamp_ms <= since_ms:
            return
        yield one.snapshot_id


def snapshot_files(table: Table) -> set[str]:
    """Return the URLs of all files that snapshots of a table name, and of the lists and manifests that name them."""
    from pyiceberg.utils.concurrent import ExecutorFactory  # noqa: PLC0415 - optional

    threads, snapshots = ExecutorFactory.get_or_create(), table.snapshots()
    lists = threads.map(lambda one: one.manifests(table.io), snapshots)
    manifests = {one.manifest_path: one for found in lists for one in found}
    entries = threads.map(lambda one: one.fetch_manifest_entry(table.io), manifests.values())
    files = {one.data_file.file_path for found in entries for one in found}
    return {one.manifest_list for one in snapshots} | manifests.keys() | files


def unnamed(table: Table, before: Set[str], load: Callable[[], Table], older_ms: float) -> list[str]:
    """Return the files to delete, by their paths below the location of a table whose snapshots have just expired.

    `before`: the files of its snapshots from before that; they go whatever their age. `load`: loads the table anew.
    Orphans that have not changed since `older_ms` (milliseconds since 1970) go as well, in doubt none.
    """
    try:
        found, doubt = _listed(table), ""
    except Exception as error:  # noqa: BLE001 - a store's client raises anything
        found, doubt = [], first_line(error)
    now = load()  # behind the listing: what was committed meanwhile is named
    named = _all_named(now)
    kept = named | {tail for url in named for tail in _tails(url)}
    there = f"{_spelt(table.location()).rstrip('/')}/"
    gone = (_spelt(url) for url in before if url not in kept and kept.isdisjoint(_tails(url)))
    expired = {url.removeprefix(there) for url in gone if url.startswith(there)}  # others may be of other tables
    orphans = [one for one in found if one.name not in expired and kept.isdisjoint(_tails(f"/{one.name}"))]
    metadata = [one for one in orphans if _METADATA in one.name]
    if len(metadata) > ORPHANS_MAX:  # not all of them are read now, and one may be of another table
        orphans = metadata = metadata[:ORPHANS_MAX]
    chosen = [one.name for one in orphans if one.at_ns < older_ms * 1e6 and one.name.endswith(_ENDS)]
    if chosen:
        doubt = _doubt(now, metadata) or _linked(now, chosen[:ORPHANS_MAX]) or _changed(table, now, load())
    if doubt:
        log.warning("tables.orphans_stay", table=".".join(table.name()), reason=doubt)
        return [*expired]
    return [*expired, *chosen[:ORPHANS_MAX]]


def _place(table: Table) -> tuple[FileSystem, str]:
    """Return where the files of a table are, and its location there. Raises OffloaderError."""
    from pyiceberg.io.pyarrow import PyArrowFileIO  # noqa: PLC0415 - optional

    if not isinstance(table.io, PyArrowFileIO):
        raise OffloaderError(f"{type(table.io).__name__} of pyiceberg lists no files, PyArrowFileIO does")
    scheme, host, path = table.io.parse_location(table.location(), table.io.properties)
    return table.io.fs_by_scheme(scheme, host), path.rstrip("/")


def _linked(table: Table, names: Sequence[str]) -> str:
    """Return which file is reached by a link below a folder of a table, and is elsewhere; empty for none."""
    files, root = _place(table)
    for name in names if isinstance(files, LocalFileSystem) else ():
        folder, _, rest = name.partition("/")
        if os.path.realpath(f"{root}/{name}") != f"{os.path.realpath(f'{root}/{folder}')}/{rest}":
            return f"{root}/{name} is reached by a link"
    return ""


def _changed(before: Table, then: Table, now: Table) -> str:
    """Return how a table has changed while its files were compared; empty if it has not."""
    same = before.location() == then.location() and then.metadata_location == now.metadata_location
    return "" if same else "another program has committed to it meanwhile"


def _all_named(table: Table) -> set[str]:
    """Return the URLs of all files that a table names."""
    said = table.metadata
    metadata = {table.metadata_location, *(one.metadata_file for one in said.metadata_log)}
    statistics = {one.statistics_path for one in (*said.statistics, *said.partition_statistics)}
    return snapshot_files(table) | metadata | statistics


def _listed(table: Table) -> list[_File]:
    """Return the files in the folders of a table, oldest first."""
    files, root = _place(table)
    found = []
    for folder in _FOLDERS:
        for one in files.get_file_info(FileSelector(f"{root}/{folder}", allow_not_found=True, recursive=True)):
            if one.type is FileType.File and one.mtime_ns is not None and one.path.startswith(f"{root}/"):
                name = one.path.removeprefix(f"{root}/")
                found.append(_File(one.mtime_ns, name, f"{table.location().rstrip('/')}/{name}", one.size or 0))
    return sorted(found)


def _doubt(table: Table, metadata: Sequence[_File]) -> str:
    """Return why the files at a place may be another table's; empty if they are not."""
    from pyiceberg.utils.concurrent import ExecutorFactory  # noqa: PLC0415 - optional

    found = [one for one in metadata if one.size_bytes]  # others are of a writer that died
    try:
        ids = ExecutorFactory.get_or_create().map(lambda one: _table_id(table.io, one.url), found)
        return next(
            (f"{one.url} is of another table" for one, of in zip(found, ids, strict=True) if of != _id(table)), ""
        )
    except Exception as error:  # noqa: BLE001 - a store's client raises anything
        return first_line(error)


def _id(table: Table) -> str:
    return str(table.metadata.table_uuid)


def _table_id(io: FileIO, url: str) -> str:
    """Return the id of the table whose metadata a file is; empty if it does not say so at its beginning."""
    with io.new_input(url).open() as file:
        said = _UUID.search(file.read(_HEAD_BYTES))
    return said[1].decode() if said else ""


def _tails(url: str) -> Iterator[str]:
    """Yield what a URL may be below the location of its table."""
    path = re.sub("/+", "/", unquote(url))
    for folder in _FOLDERS:
        for found in re.finditer(f"/(?={folder}/)", path):
            yield path[found.end() :]


def _spelt(url: str) -> str:
    """Return a URL as Spark writes it: file:/x for file:///x."""
    return url.replace("file:///", "file:/", 1)
