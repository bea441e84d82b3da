"""offloaderd verify: what it shows, its lines of JSON, and its exit codes."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from offloaderd.cli.offloaderd.__main__ import cli
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.testing import FakeClock
from tests.unit.upkeep.site import PREFIX, TOPIC, Ground, data_key, runs, segment_id
from tests.virtual import virtually

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """A directory with two segments of one topic."""
    directory = tmp_path / "bucket"

    async def fill() -> None:
        ground = Ground()
        async with FilesystemStore(directory, FakeClock()) as store:
            ground.objects = store
            await ground.store(1, runs(1, 0, 4))
            await ground.store(2, runs(1, 4, 4))

    directory.mkdir()
    virtually(fill())
    return directory


@pytest.fixture
def config(tmp_path: Path, bucket: Path) -> Path:
    """Settings that name it."""
    path = tmp_path / "offloaderd.toml"
    path.write_text(
        f'[daemon]\ncluster = "standalone"\n'
        f'[objects]\nkind = "filesystem"\ndirectory = "{bucket}"\nprefix = "{PREFIX}"\n'
    )
    return path


def invoke(config: Path, *words: str) -> Result:
    """Run the command in this process."""
    result = CliRunner().invoke(cli, ["verify", "--config", str(config), *words], prog_name="offloaderd")
    assert "Traceback" not in result.output
    return result


def damage(bucket: Path, key: str) -> None:
    """Flip a bit in an object of the directory, as a disk does: nobody has written the file."""
    (path,) = [path for path in bucket.rglob("*") if path.is_file() and str(path).endswith(key.rpartition("/")[2])]
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[150] ^= 4
    path.write_bytes(bytes(data))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_sound_bucket_is_exit_code_0(config: Path) -> None:
    """A line a topic, and the sum."""
    result = invoke(config)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"{TOPIC}: sound (2 segments, 384 B)",
        "inspected 2 segments of 1 topic: 8 entries, 384 B; no problem",
    ]


def test_a_flipped_bit_is_exit_code_1(config: Path, bucket: Path) -> None:
    """Key, byte, entries, and what to do."""
    damage(bucket, data_key(2))
    result = invoke(config)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == f"{TOPIC}: 1 PROBLEM (2 segments, 384 B)"
    assert lines[1].startswith(f"  BLOCK        {data_key(2)} at byte 0: expected a block with checksum ")
    assert lines[1].endswith("; entries 1:4 to 1:7")
    assert lines[2].startswith("               -> restore the object")
    assert lines[3].endswith("; 1 problem")
    assert invoke(config, "--level", "metadata").exit_code == 0


def test_as_lines_of_json(config: Path, bucket: Path) -> None:
    """One a topic, the sum in the last."""
    damage(bucket, data_key(2))
    result = invoke(config, "--json")
    topic, summary = map(json.loads, result.stdout.splitlines())
    assert (topic["topic"], topic["segments"], topic["problems"]) == (str(TOPIC), 2, 1)
    (flaw,) = topic["flaws"]
    assert (flaw["kind"], flaw["problem"], flaw["key"], flaw["offset"]) == ("block", True, data_key(2), 0)
    assert (flaw["segment_id"], flaw["entries"]) == (str(segment_id(2)), "1:4 to 1:7")
    assert summary["summary"]["problems"] == 1
    assert summary["summary"]["last_topic"] == str(TOPIC)


def test_it_goes_on_behind_a_topic(config: Path) -> None:
    """Those up to the one that is named are left out."""
    result = invoke(config, "--after", "public/default/flights")
    assert result.exit_code == 0
    assert result.stdout.startswith("inspected 0 segments of 0 topics")


def test_what_cannot_be_looked_at_is_exit_code_3(tmp_path: Path) -> None:
    """Nothing was found wrong, and nothing was seen."""
    path = tmp_path / "offloaderd.toml"
    path.write_text(f'[objects]\nkind = "filesystem"\ndirectory = "{tmp_path}/none"\n')
    result = invoke(path)
    assert result.exit_code == 3, result.output
    assert "not everything could be read" in result.stdout
    assert json.loads(invoke(path, "--json").stdout)["summary"]["error"]


def test_wrong_settings_are_exit_code_2(tmp_path: Path) -> None:
    """As everywhere."""
    path = tmp_path / "offloaderd.toml"
    path.write_text("[objects]\nno_such = 1\n")
    assert invoke(path).exit_code == 2
