"""offloaderd drill restore: its report, its exit codes, and its file of metrics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from offloaderd.cli.offloaderd.__main__ import cli
from offloaderd.core.errors import Denied
from offloaderd.drill.restore import RestoreDrill
from offloaderd.drill.restore_report import last_success
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.testing import FakeClock
from tests.unit.cli.test_verify import damage
from tests.unit.upkeep.site import PREFIX, TOPIC, Ground, data_key, runs
from tests.virtual import virtually

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

NAME = "offloaderd_restore_drill_"


class Site:
    """A directory with a topic of two ledgers, the settings that name it, and a place for metrics."""

    def __init__(self, root: Path) -> None:
        self.bucket, self.config, self.metrics = root / "bucket", root / "offloaderd.toml", root / "restore.prom"
        self.bucket.mkdir()
        virtually(self._fill())
        self.config.write_text(
            f'[daemon]\ncluster = "standalone"\n'
            f'[objects]\nkind = "filesystem"\ndirectory = "{self.bucket}"\nprefix = "{PREFIX}"\n'
        )

    async def _fill(self) -> None:
        ground = Ground()
        async with FilesystemStore(self.bucket, FakeClock()) as store:
            ground.objects = store
            await ground.store(1, [*runs(1, 0, 4), *runs(2, 0, 2)])

    def run(self, *words: str) -> Result:
        """Run the command."""
        words = ("drill", "restore", "--config", str(self.config), *words)
        result = CliRunner().invoke(cli, words, prog_name="offloaderd")
        assert "Traceback" not in result.output
        return result

    def measured(self, *words: str) -> tuple[Result, dict[str, float]]:
        """Run it with a file of metrics; returns these by name and last label."""
        result = self.run("--metrics-file", str(self.metrics), *words)
        found = {}
        for family in text_string_to_metric_families(self.metrics.read_text()):
            for sample in family.samples:
                assert sample.labels.pop("pulsar_cluster") == "standalone"
                found[" ".join([sample.name.removeprefix(NAME), *sample.labels.values()])] = sample.value
        return result, found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a sound site."""
    return Site(tmp_path)


def test_a_sound_bucket_is_exit_code_0_and_leaves_it_as_it_was(site: Site, tmp_path: Path) -> None:
    """The report is shown, and written where it is wanted."""
    before = {path: path.stat().st_mtime_ns for path in site.bucket.rglob("*")}
    result = site.run("--read", "all", "--output", str(tmp_path / "restore.md"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "restore.md").read_text() == result.stdout
    lines = result.stdout.splitlines()
    assert lines[0] == "# Drill of a restore: standalone"
    assert lines[2].endswith("Every topic would come up.")
    assert {"- ledgers: 2", "- entries: 6, 18 B of payload", "- messages: 6"} < set(lines)
    assert {path: path.stat().st_mtime_ns for path in site.bucket.rglob("*")} == before


def test_a_flipped_bit_is_exit_code_1(site: Site) -> None:
    """Topic, ledger, key and byte are named."""
    damage(site.bucket, data_key(1))
    result = site.run("--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    (topic,) = document["topic_results"]
    assert (document["sound"], topic["topic"], topic["comes_up"]) == (False, str(TOPIC), False)
    assert topic["why"][0].startswith(f"ledger 1: corrupt data in {data_key(1)} at byte 0")
    assert site.run("--read", "none").exit_code == 0


def test_the_metrics_of_a_failure_keep_the_time_of_the_last_success(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its age is what an alert compares; a drill that is broken off counts as one that failed."""
    result, first = site.measured()
    assert result.exit_code == 0
    assert (first["success"], first["topics sound"], first["topics failed"]) == (1, 1, 0)
    assert first["last_success_timestamp_seconds"] == first["last_run_timestamp_seconds"] > 0
    assert {f"duration_seconds {part}" for part in ("listing", "plan", "apply", "read")} < first.keys()

    damage(site.bucket, data_key(1))
    result, second = site.measured()
    assert result.exit_code == 1
    assert (second["success"], second["topics sound"], second["topics failed"]) == (0, 0, 1)
    assert second["last_run_timestamp_seconds"] > first["last_run_timestamp_seconds"]
    assert second["last_success_timestamp_seconds"] == first["last_success_timestamp_seconds"]

    async def refused(_: RestoreDrill) -> None:
        raise Denied("GET: AccessDenied")

    monkeypatch.setattr(RestoreDrill, "run", refused)
    result, third = site.measured()
    assert result.exit_code == 7
    assert third.keys() == {"success", "last_run_timestamp_seconds", "last_success_timestamp_seconds"}
    assert third["last_success_timestamp_seconds"] == first["last_success_timestamp_seconds"]


def test_a_site_without_a_success_says_so_by_zero(site: Site) -> None:
    """That is older than any interval."""
    damage(site.bucket, data_key(1))
    assert site.measured()[1]["last_success_timestamp_seconds"] == 0


def test_a_file_of_something_else_is_not_replaced(site: Site, tmp_path: Path) -> None:
    """Nor is a drill run whose metrics nobody could find."""
    other = tmp_path / "report.md"
    other.write_text("# A report\n\n- a line {\n")
    result = site.run("--metrics-file", str(other))
    assert (result.exit_code, "is no file of metrics" in result.stderr) == (2, True)
    assert other.read_text().startswith("# A report")
    result = site.run("--metrics-file", str(tmp_path / "nowhere" / "restore.prom"))
    assert (result.exit_code, "is no directory" in result.stderr) == (2, True)


def test_a_success_of_another_cluster_does_not_count(site: Site) -> None:
    """A file may have come with a copy of the machine."""
    site.measured()
    assert last_success(site.metrics, "standalone") > 0
    assert last_success(site.metrics, "another") == 0


@pytest.mark.parametrize("words", [("nobody/*",), ("a//b",), ("--read", "some"), ("--at-gap", "jump")])
def test_mistakes_are_exit_code_2(site: Site, words: tuple[str, ...]) -> None:
    """A pattern that matches nothing, or is none, and values that are none."""
    assert site.run(*words).exit_code == 2
