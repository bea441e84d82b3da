"""offloadctl metadata: captures of a bucket, shown, compared, and written back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from offloaderd.capture import storage
from offloaderd.capture.records import Capture, Kind, decode, encode, node_value
from offloaderd.cli.offloadctl import metadata as command
from offloaderd.cli.offloadctl.__main__ import cli
from offloaderd.metadata import paths
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.policy import records, store
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.policy.records import LevelPolicy
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.upkeep.stored import Site
from tests.virtual import LoopClock, virtually

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

SITE = Site(cluster="standalone", bucket="pulsar-offload", prefix="")
LEVEL = records.encode_level(LevelPolicy(OffloadPolicies(segment_age_max_s=77.0)))
FIRST = Capture(
    cluster="standalone",
    deployment_id="",
    taken_ms=1_700_000_000_000,
    records={
        (Kind.SUBSCRIPTION, "persistent://a/b/c", "s"): {"mark_delete": "3:4"},
        (Kind.NODE, paths.BROKER_POLICY, ""): node_value(LEVEL),
    },
)
SECOND = replace(
    FIRST,
    taken_ms=FIRST.taken_ms + 1000,
    records={**FIRST.records, (Kind.SUBSCRIPTION, "persistent://a/b/c", "s"): {"mark_delete": "3:" + "9" * 200}},
)


class Scene:
    """A bucket in a directory, and metadata in memory."""

    def __init__(self, directory: Path) -> None:
        self.config = directory / "offloaderd.toml"
        bucket = directory / "bucket"
        self.config.write_text(
            f'[daemon]\ncluster = "standalone"\n[objects]\nkind = "filesystem"\ndirectory = "{bucket}"\n'
        )
        self.objects = FilesystemStore(bucket, LoopClock())
        self.tree = MemoryTree()
        virtually(self.objects.create_bucket())

    def stored(self, *captures: Capture) -> list[str]:
        """Store captures; returns their names."""

        async def write() -> list[str]:
            return [(await storage.write(self.objects, SITE, one)).name for one in captures]

        return virtually(write())

    def run(self, *words: str) -> Result:
        """Run the command."""
        arguments = ["metadata", *words, "--config", str(self.config)]
        result = CliRunner().invoke(cli, arguments, prog_name="offloadctl")
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
        return result


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """What the command opens."""
    scene = Scene(tmp_path)
    monkeypatch.setattr(command, "metadata_store", lambda _: scene.tree.connect())
    return scene


def test_captures_are_listed_newest_first(scene: Scene) -> None:
    """With their times."""
    names = scene.stored(FIRST, SECOND)
    listed = json.loads(scene.run("list", "-o", "json").stdout)["captures"]
    assert [one["name"] for one in listed] == names[::-1]
    assert listed[1]["taken"] == "2023-11-14T22:13:20+00:00"
    lines = scene.run("list").stdout.splitlines()
    assert lines[0].split() == ["TAKEN", "NAME", "SIZE"]
    assert len(lines) == 3


def test_an_export_is_what_was_stored(scene: Scene, tmp_path: Path) -> None:
    """As lines to read, or as a file that other commands take."""
    name, _ = scene.stored(FIRST, SECOND)
    lines = [json.loads(line) for line in scene.run("export", name).stdout.splitlines()]
    assert [one.get("kind") for one in lines] == [None, "node", "subscription", None]
    path = tmp_path / "out.jsonl.gz"
    assert "1 subscription" in scene.run("export", "--output", str(path)).stdout
    assert decode(path.read_bytes(), key="f") == SECOND
    result = scene.run("diff", name, str(path))
    assert (result.exit_code, "subscription persistent://a/b/c s" in result.stdout) == (1, True)
    assert max(map(len, result.stdout.splitlines())) < 120
    same = scene.run("diff", str(path), "newest")
    assert (same.exit_code, same.stdout) == (0, "no record differs\n")


def test_a_capture_is_taken_now_and_compared(scene: Scene) -> None:
    """Without a cluster it has what offloaderd keeps itself."""
    virtually(store.put_level(scene.tree.connect(), LoopClock(), None, OffloadPolicies(segment_age_max_s=77.0)))
    taken = json.loads(scene.run("capture", "-o", "json").stdout)
    assert (taken["records"], taken["problems"]) == ({"node": 1}, [])
    assert scene.run("diff", "newest").exit_code == 0
    virtually(store.remove_level(scene.tree.connect(), LoopClock(), None))
    changed = json.loads(scene.run("diff", "newest", "now", "-o", "json").stdout)["changes"]
    assert [(one["kind"], one["about"], one["after"]) for one in changed] == [("node", paths.BROKER_POLICY, None)]


def test_an_import_writes_what_is_missing(scene: Scene) -> None:
    """After it was shown; what is there stays."""
    scene.stored(FIRST)
    planned = scene.run("import")
    assert (planned.exit_code, "would write 1 node, left 0" in planned.stdout) == (0, True)
    assert virtually(scene.tree.connect().children(paths.POLICIES)) == []
    assert "wrote 1 node, left 0" in scene.run("import", "--apply").stdout
    again = json.loads(scene.run("import", "--apply", "-o", "json").stdout)
    assert (again["written"], list(again["left"])) == ([], [paths.BROKER_POLICY])


def test_a_file_of_another_cluster_is_not_imported(scene: Scene, tmp_path: Path) -> None:
    """It may be compared."""
    scene.stored(FIRST)
    path = tmp_path / "other.gz"
    path.write_bytes(encode(replace(FIRST, cluster="other")))
    result = scene.run("import", str(path), "--apply")
    assert (result.exit_code, "cluster 'other'" in result.stderr) == (2, True)
    assert virtually(scene.tree.connect().children(paths.POLICIES)) == []
    assert scene.run("diff", str(path), "newest").exit_code == 0


def test_a_file_that_is_called_newest_is_not_the_newest(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word is that of the bucket's."""
    scene.stored(FIRST)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "newest").write_bytes(b"no capture")
    assert scene.run("export").exit_code == 0


@pytest.mark.parametrize("words", [("export", "20200101T000000Z-00000000"), ("export",), ("import", "now"), ("diff",)])
def test_mistakes_are_told(scene: Scene, words: tuple[str, ...]) -> None:
    """A name that there is not, an empty bucket, and what makes no sense."""
    assert scene.run(*words).exit_code not in {0, 1}


def test_a_file_that_is_none_is_damaged(scene: Scene, tmp_path: Path) -> None:
    """The error names it."""
    path = tmp_path / "bad.gz"
    path.write_bytes(encode(FIRST)[:-5])
    result = scene.run("diff", str(path), str(path))
    assert result.exit_code != 0
    assert "bad.gz" in result.stderr
