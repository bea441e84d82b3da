"""Commits of exports to folders: one of two is first, a round is seen whole or not, and crashes leave nothing."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any, cast

import pytest

from offloaderd.core.errors import Conflict, CorruptData, InvalidConfig, OffloaderError
from offloaderd.spark.export import folder as export_folder
from offloaderd.spark.export.commit import Commit
from offloaderd.spark.export.folder import ExportFolder
from offloaderd.spark.files import check_scheme, link_new, move_new
from tests.patience import PATIENCE_S
from tests.unit.spark.local_files import LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = {"cluster": "c", "topic": "public/default/orders", "rows": "entries"}


class Archive:
    """A folder, and what any reader sees of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def target(self) -> ExportFolder:
        """Have it as a target."""
        return ExportFolder(cast("SparkSession", None), self.folder.as_uri())

    def write(self, staging: str, text: str) -> None:
        """Write what Spark would write of a round of two days."""
        for day in ("2026-11-21", "2026-11-22"):
            folder = Path(staging.removeprefix("file:")) / f"day={day}"
            folder.mkdir(parents=True)
            (folder / "part-0.parquet").write_text(text)

    def round(self, text: str) -> Commit:
        """Export once more."""
        target = self.target()
        last = target.recover(SOURCE)
        staging = target.staging(last)
        self.write(staging, text)
        return target.commit(last, staging, {"orders": f"{last.number}:0"}, 2)

    def seen(self) -> list[str]:
        """Return what the files say that readers see, in order."""
        files = [one for one in self.folder.rglob("*.parquet") if "_offloaderd" not in str(one)]
        return [one.read_text() for one in sorted(files, key=lambda one: one.relative_to(self.folder).parts)]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """An empty folder, without Java."""
    monkeypatch.setattr(export_folder, "SparkFiles", LocalFiles)
    return Archive(tmp_path / "archive")


def test_rounds_follow_each_other(archive: Archive) -> None:
    """Each is a folder with its days; looking changes nothing; staging is empty afterwards."""
    assert archive.target().last(SOURCE) == Commit(number=0, source=SOURCE, positions={})
    assert not archive.folder.exists()
    archive.round("a")
    made = archive.round("b")
    assert archive.target().last(SOURCE) == made
    assert (made.number, made.positions) == (2, {"orders": "1:0"})
    assert archive.seen() == ["a", "a", "b", "b"]
    days = sorted(str(one.relative_to(archive.folder)) for one in archive.folder.glob("round=*/day=*"))
    assert days[::3] == ["round=0000000001/day=2026-11-21", "round=0000000002/day=2026-11-22"]
    assert not list((archive.folder / "_offloaderd" / "staging").iterdir())
    with pytest.raises(InvalidConfig, match="export of something else"):
        archive.target().last({**SOURCE, "rows": "messages"})


def test_of_two_that_meet_at_the_commit_one_is_told(archive: Archive) -> None:
    """However often they meet: one commits, the other hears of it, and the round is there once."""
    rounds, meeting = 150, Barrier(2, timeout=PATIENCE_S)

    def exports(name: str) -> list[str]:
        outcomes = []
        for number in range(rounds):
            target = archive.target()
            last = target.last(SOURCE)
            staging = target.staging(last)
            archive.write(staging, f"{number}")
            meeting.wait()
            try:
                target.commit(last, staging, {"orders": f"{number}:0"}, 1)
                outcomes.append(name)
            except Conflict:
                outcomes.append("")
            meeting.wait()
        return outcomes

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(exports, ["one", "two"]))
    assert [bool(one) + bool(two) for one, two in zip(*told, strict=True)] == [1] * rounds
    archive.target().recover(SOURCE)
    assert archive.seen() == [str(number) for number in range(rounds) for _ in range(2)]


def test_a_crash_between_commit_and_move(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers see nothing of the round, never half of it; the next run, or another at the same time, moves it."""
    archive.round("a")
    move = LocalFiles.move
    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "move", lambda *places: 1 / 0 if places[2] == "round=0000000002" else move(*places))
        with pytest.raises(ZeroDivisionError):
            archive.round("b")
    assert archive.seen() == ["a", "a"]
    assert archive.target().last(SOURCE).number == 2
    archive.target().recover(SOURCE)
    assert archive.seen() == ["a", "a", "b", "b"]
    finish = ExportFolder._finish

    def raced(self: ExportFolder, made: Commit) -> None:
        finish(archive.target(), made)
        finish(self, made)

    monkeypatch.setattr(ExportFolder, "_finish", raced)
    assert archive.round("c").number == 3
    assert archive.seen() == ["a", "a", "b", "b", "c", "c"]


def test_what_others_do_with_finished_rounds_holds_up_nothing(archive: Archive) -> None:
    """Files that were deleted or compacted, and whole rounds, are not asked for, and not exported again."""
    archive.round("a")
    archive.round("b")
    for file in archive.folder.glob("round=0000000002/day=*/*.parquet"):
        file.unlink()
    assert archive.round("c").number == 3
    (archive.folder / "round=0000000003").rename(archive.folder / "round=compacted")
    assert archive.round("d").positions == {"orders": "3:0"}
    assert archive.seen() == ["a", "a", "d", "d", "c", "c"]


def test_a_folder_of_an_earlier_release(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Days at the top, a record with files, and a round that a crash had left half moved: nothing is there twice."""
    commits, staging = archive.folder / "_offloaderd" / "commits", archive.folder / "_offloaderd" / "staging" / "1-x"
    archive.write(str(staging), "a")
    (archive.folder / "day=2026-11-21").mkdir()
    (staging / "day=2026-11-21" / "part-0.parquet").rename(archive.folder / "day=2026-11-21" / "1-part-0.parquet")
    commits.mkdir()
    (commits / "0000000001.json").write_text(
        '{"version": 1, "number": 1, "source": {"cluster": "c", "topic": "public/default/orders", "rows": "entries"}, '
        '"positions": {"orders": "0:0"}, "files": ["day=2026-11-21/part-0.parquet", "day=2026-11-22/part-0.parquet"], '
        '"staging": "_offloaderd/staging/1-x", "rows": 2}'
    )
    move = LocalFiles.move
    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "move", lambda *given: 1 / 0 if given[1].startswith("day=") else move(*given))
        with pytest.raises(ZeroDivisionError):
            archive.target().recover(SOURCE)
    assert (archive.folder / "day=2026-11-21").is_dir()
    assert '"version": 2' in (commits / "0000000002.json").read_text(), (
        "earlier releases know none but 1, and refuse it"
    )
    assert archive.target().last(SOURCE).positions == {"orders": "0:0"}
    assert archive.round("b").number == 4
    assert archive.seen() == ["a", "a", "b", "b"]
    assert {one.name[:6] for one in archive.folder.iterdir()} == {"_offlo", "round="}
    (commits / "0000000005.json").write_text('{"version": 3}')
    with pytest.raises(CorruptData, match="version 2 or older"):
        archive.target().last(SOURCE)


def test_an_answer_that_was_lost_is_read_back(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has made the link, and says that it is there when it is asked again."""

    def twice(here: Path, there: Path) -> None:
        link(here, there)
        link(here, there)

    link = os.link
    monkeypatch.setattr(os, "link", twice)
    assert archive.round("a").number == 1
    assert archive.seen() == ["a", "a"]


def test_file_systems_without_the_steps_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told what to use instead: nothing is ever committed there on a guess."""
    for scheme in ("file", "hdfs"):
        check_scheme(scheme, "target")
    for scheme in ("s3a", "gs", "abfs", "webhdfs"):
        with pytest.raises(InvalidConfig, match=f"on {scheme}:// two exports could commit") as told:
            check_scheme(scheme, f"{scheme}://b/orders")
        assert "--format iceberg" in (told.value.hint or "")

    def refused(code: int) -> Any:  # noqa: ANN401 - stands for os.link
        def link(*_: Path) -> None:
            raise OSError(code, os.strerror(code))

        return link

    monkeypatch.setattr(os, "link", refused(errno.EPERM))
    with pytest.raises(InvalidConfig, match="no hard links"):
        link_new(tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr(os, "link", refused(errno.EIO))
    with pytest.raises(OffloaderError, match="cannot commit"):
        link_new(tmp_path / "a", tmp_path / "b")
    (tmp_path / "here" / "x").mkdir(parents=True)
    (tmp_path / "there" / "y").mkdir(parents=True)
    with pytest.raises(OffloaderError, match="cannot be moved"):
        move_new(tmp_path / "here", tmp_path / "there")
