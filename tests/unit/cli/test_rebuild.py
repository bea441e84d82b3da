"""offloaderd rebuild: its arguments, what it shows, and that a dry run needs no ZooKeeper."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from click.testing import CliRunner

from offloaderd.capture import storage
from offloaderd.capture.records import Capture, Key, Kind, node_value
from offloaderd.cli.offloaderd import rebuild
from offloaderd.cli.offloaderd.__main__ import cli
from offloaderd.metadata import paths
from offloaderd.objects import keys
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.policy import records
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.upkeep.stored import Site
from tests.unit.upkeep.site import TOPIC, Ground, runs
from tests.virtual import LoopClock, virtually

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings of a daemon whose bucket is a directory, and whose ZooKeeper is not there."""
    path = tmp_path / "offloaderd.toml"
    path.write_text(
        f'[daemon]\ncluster = "standalone"\n[objects]\nkind = "filesystem"\ndirectory = "{tmp_path / "bucket"}"\n'
        'prefix = "seg/"\n[metadata]\nservers = "127.0.0.1:1"\nconnect_timeout_s = 0.5\n'
    )
    virtually(fill(tmp_path / "bucket"))
    return path


async def fill(directory: Path) -> None:
    """Store two segments of a topic, a third that overlaps the second, and an orphan."""
    store = FilesystemStore(directory, LoopClock())
    await store.create_bucket()
    ground = Ground()
    ground.objects = store
    await ground.store(1, runs(3, 0, 10))
    await ground.store(2, runs(3, 10, 5))
    await ground.store(3, runs(3, 12, 3))
    await store.put(keys.SegmentKeys("seg/", UUID(int=9)).data, b"x", metadata=keys.segment_metadata("standalone"))


def run(config: Path, *words: str) -> Result:
    """Run the command."""
    result = CliRunner().invoke(cli, ["rebuild", "--config", str(config), *words], prog_name="offloaderd")
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def test_a_conflict_is_shown_with_what_to_do(config: Path) -> None:
    """A line a topic, a line a problem, and that nothing was written; exit code 1."""
    result = run(config)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["STATE", "TOPIC", "SEGMENTS", "ENTRIES", "PAYLOAD", "BEGIN", "END", "LOSSES"]
    assert lines[1].split()[:4] == ["blocked", "persistent://public/default/flights", "2", "15"]
    assert any(one.startswith("OVERLAP ") and "--prefer" in one for one in lines)
    assert any(one.startswith("orphan ") for one in lines)
    assert "read 4 segments" in result.stdout
    assert "would write 0 topics" in result.stdout
    assert "the target cannot take it: cannot connect" in result.stdout or "127.0.0.1:1" in result.stdout


def test_what_was_decided_clears_it(config: Path) -> None:
    """With a segment preferred or left out the topic is ready; the document says so."""
    for words in (("--prefer", str(UUID(int=2))), ("--without", str(UUID(int=3)))):
        result = run(config, "--json", *words)
        assert result.exit_code == 1, "no ZooKeeper to write to"
        shown = json.loads(result.stdout)
        assert [(one["topic"], one["state"], one["end"]) for one in shown["topics"]] == [
            ("persistent://public/default/flights", "ready", "3:14")
        ]
        assert [one["kind"] for one in shown["problems"]] == ["orphan"]
        assert "127.0.0.1:1" in shown["target"]
        assert shown["applied"] is False


def test_applying_needs_the_metadata(config: Path) -> None:
    """Without ZooKeeper it is an error, not a finding."""
    result = run(config, "--apply")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(
    "words", [("--prefer", "x"), ("--without", str(UUID(int=77))), ("--topic", "nobody"), ("--lost", "77:0")]
)
def test_mistakes_are_exit_code_2(config: Path, words: tuple[str, ...]) -> None:
    """No uuid, a segment or topic that is not there, a position at which no segment ends."""
    assert run(config, *words).exit_code == 2


@pytest.mark.parametrize("named", ["newest", "none"])
def test_what_operators_decided_comes_out_of_a_capture(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """Policies are written once the maps are; without a capture it is told that they are missing."""
    tree = MemoryTree()
    monkeypatch.setattr(rebuild, "metadata_store", lambda _: tree.connect())
    site = Site(cluster="standalone", bucket="pulsar-offload", prefix="seg/")
    level = records.encode_level(records.LevelPolicy(OffloadPolicies(segment_age_max_s=77.0)))
    found: dict[Key, object] = {(Kind.NODE, paths.BROKER_POLICY, ""): node_value(level)}
    capture = Capture(cluster="standalone", deployment_id="", taken_ms=1_700_000_000_000, records=found)
    virtually(storage.write(FilesystemStore(tmp_path / "bucket", LoopClock()), site, capture))
    result = run(config, "--apply", "--prefer", str(UUID(int=2)), "--capture", named)
    assert result.exit_code == 0, result.stdout
    if named == "none":
        assert "no capture: policies" in result.stdout
        assert virtually(tree.connect().children(paths.POLICIES)) == []
    else:
        assert "wrote 1 node out of the capture of 2023-11-14" in result.stdout
        assert virtually(tree.connect().get(paths.BROKER_POLICY)).value == level


def test_a_rebuild_of_one_topic_restores_nothing_above_it(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policies of an operator stand, whatever an old capture says; the topic gets its own again."""
    tree = MemoryTree()
    monkeypatch.setattr(rebuild, "metadata_store", lambda _: tree.connect())
    site = Site(cluster="standalone", bucket="pulsar-offload", prefix="seg/")
    level = records.encode_level(records.LevelPolicy(OffloadPolicies(segment_age_max_s=77.0)))
    policy = records.encode_policy(records.TopicPolicy(segment_age_max_s=88.0))
    found: dict[Key, object] = {
        (Kind.NODE, paths.BROKER_POLICY, ""): node_value(level),
        (Kind.NODE, paths.policy(TOPIC), ""): node_value(policy),
    }
    capture = Capture(cluster="standalone", deployment_id="", taken_ms=1_700_000_000_000, records=found)
    virtually(storage.write(FilesystemStore(tmp_path / "bucket", LoopClock()), site, capture))
    words = ("--apply", "--enable", "--topic", str(TOPIC), "--prefer", str(UUID(int=2)))
    assert run(config, *words).exit_code == 0
    assert virtually(tree.connect().children(paths.POLICIES)) == []
    assert virtually(tree.connect().get(paths.policy(TOPIC))).value == policy
