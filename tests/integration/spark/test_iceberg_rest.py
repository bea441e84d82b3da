"""Commits to a table of a REST catalogue: exactly once, whatever becomes of a request and whoever else commits."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, cast

import pytest
from pyiceberg.catalog import load_catalog

from offloaderd.core.errors import Conflict, InvalidConfig, OffloaderError
from offloaderd.spark.export import commit as export_commit
from offloaderd.spark.export import iceberg as export_iceberg
from offloaderd.spark.export.iceberg import IcebergTable
from offloaderd.standalone.ports import LOOPBACK
from offloaderd.tables.layout import Layout
from tests.real.iceberg_catalogue import in_settings
from tests.unit.spark.iceberg_lake import COLUMNS, SOURCE, Lake, before, called, local_lake

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

NUMBERS = count()


class Fault(NamedTuple):
    """What becomes of a commit: whether it is carried out, and the status of the answer; 0: none comes."""

    carried_out: bool
    status: int


class Catalogue:
    """A catalogue behind a proxy with faults, each for one commit."""

    def __init__(self, port: int) -> None:
        self.url = f"http://{LOOPBACK}:{port}"
        self.faults: list[Fault] = []


@contextmanager
def before_catalogue(url: str) -> Iterator[Catalogue]:
    """Relay requests to a catalogue."""

    class Relay(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            commit = self.command == "POST" and "/tables/" in self.path
            fault = found.faults.pop(0) if commit and found.faults else None
            status, kind, answer = 0, "", b""
            if fault is None or fault.carried_out:
                connection = HTTPConnection(url.removeprefix("http://"))
                headers = {"Content-Type": self.headers.get("Content-Type", ""), "Host": LOOPBACK}
                connection.request(self.command, self.path, body, headers)
                given = connection.getresponse()
                status, kind, answer = given.status, given.getheader("Content-Type", ""), given.read()
                connection.close()
            if fault is not None:
                status, answer = fault.status, b"{}"
            if not status:
                return
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer if self.command != "HEAD" else b"")

        do_POST = do_HEAD = do_DELETE = do_GET  # noqa: N815 - named by the library

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer((LOOPBACK, 0), Relay) as server:
        found = Catalogue(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


class RestLake(Lake):
    """A table in the catalogue, by a name of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.where = IcebergTable(catalog="rest", name=f"shop{next(NUMBERS)}.orders")

    @contextmanager
    def table(self, name: str = "") -> Iterator[Table]:
        """See Lake."""
        catalog = load_catalog("rest")
        try:
            yield catalog.load_table(name or self.where.name)
        finally:
            catalog.close()


@pytest.fixture
def catalogue(rest_catalogue: str) -> Iterator[Catalogue]:
    """The catalogue, as the settings of pyiceberg name it."""
    with before_catalogue(rest_catalogue) as found, in_settings("rest", found.url):
        yield found


@pytest.fixture
def lake(catalogue: Catalogue, tmp_path: Path) -> Iterator[RestLake]:
    """An empty lake there, whose files are read without Java."""
    del catalogue
    with local_lake(tmp_path):
        yield RestLake(tmp_path)


def test_positions_come_with_the_data(lake: RestLake) -> None:
    """A folder of files is added with the positions that it reaches, and a round without a row moves them alone."""
    assert lake.last() == (0, {})
    lake.round(1, 5)
    lake.round(2, 0)
    lake.round(3, 2)
    assert lake.last() == (3, {"orders": "3:1"})
    assert lake.counts() == {1: 5, 3: 2}


@pytest.mark.parametrize("status", [0, 500, 504], ids=["no answer", "500", "504"])
def test_a_commit_without_an_answer(lake: RestLake, catalogue: Catalogue, status: int) -> None:
    """What became of it is read back: one that was carried out counts once, one that was not is told."""
    lake.round(1, 5)
    catalogue.faults.append(Fault(carried_out=True, status=status))
    lake.round(2, 4)
    assert not catalogue.faults
    assert lake.last() == (2, {"orders": "2:3"})
    catalogue.faults.append(Fault(carried_out=False, status=status))
    with pytest.raises(OffloaderError, match="cannot commit"):
        lake.round(3, 3)
    assert lake.counts() == {1: 5, 2: 4}
    assert lake.last() == (2, {"orders": "2:3"})
    lake.round(3, 3)
    assert lake.counts() == {1: 5, 2: 4, 3: 3}


def test_of_two_exports_one_is_told(lake: RestLake) -> None:
    """The other one's rows are there once, and its own are not."""
    lake.round(1, 5)
    with lake.target() as target:
        last = target.recover(SOURCE)
        target.named(COLUMNS)
        staging = target.staging(last)
        lake.write(staging, 2, 4)
        lake.round(2, 3)
        with pytest.raises(Conflict, match="another export has committed"):
            target.commit(last, staging, {"orders": "2:3"}, 4)
    assert lake.counts() == {1: 5, 2: 3}


def test_commits_of_others_in_between(lake: RestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round is tried again on top of them."""
    lake.round(1, 5)

    def deleted() -> None:
        with lake.table() as table:
            table.delete("ledger_id = 1")

    monkeypatch.setattr(export_iceberg.ExportTable, "_try", before(deleted))
    lake.round(2, 4)
    assert lake.counts() == {2: 4}


def test_a_renamed_field_and_upkeep(lake: RestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue renames the column; small files are joined, and those of before go."""
    monkeypatch.setattr(export_commit, "SMALL_FILES", 2)
    lake.round(1, 4)
    lake.round(2, 4)
    columns = called({"entry_id": "number"})
    with export_iceberg.opened(
        cast("SparkSession", None), lake.where, columns, layout=Layout(), aliases={"number": ["entry_id"]}
    ) as target:
        target.recover(SOURCE)
        assert target.named(columns).names == columns.names
        done = target.upkeep(0.0)
    assert (done.joined, done.deleted) == (4, 15)  # four of rows, and their manifests and lists
    with lake.table() as table:
        rows = table.scan().to_arrow().to_pylist()
    assert sorted((row["ledger_id"], row["number"]) for row in rows) == [(n, at) for n in (1, 2) for at in range(4)]


def test_a_catalogue_that_is_away(lake: RestLake) -> None:
    """One line names it, and what to look at."""
    lake.where = IcebergTable(catalog="gone", name="shop.orders")
    with (
        in_settings("gone", f"http://{LOOPBACK}:1"),
        pytest.raises(InvalidConfig, match=r"catalogue gone: .*refused") as caught,
    ):
        lake.last()
    assert "PYICEBERG_CATALOG" in str(caught.value.hint)
