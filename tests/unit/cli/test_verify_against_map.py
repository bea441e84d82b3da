"""offloaderd verify --against-map: ledgers whose copy is damaged stay at their source, without any daemon."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from offloaderd.cli.offloaderd import verify
from offloaderd.cli.offloaderd.__main__ import cli
from offloaderd.core.errors import Denied, OffloaderError, Transient
from offloaderd.daemon.settings import load
from offloaderd.daemon.stores import sites
from offloaderd.metadata import paths
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records import grant as grant_record
from offloaderd.metadata.records.grant import Grant
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.testing import FakeClock
from offloaderd.upkeep.grants import records as grant_records
from tests.unit.cli.test_verify import damage
from tests.unit.upkeep.site import PREFIX, TOPIC, Ground, data_key, manifest_key, runs
from tests.virtual import virtually

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from offloaderd.metadata.port import MetadataStore


class Site:
    """A directory with three ledgers, one a segment, and ZooKeeper's stand-in."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bucket = folder / "bucket"
        self.bucket.mkdir()
        self.config = folder / "offloaderd.toml"
        self.config.write_text(
            f'[daemon]\ncluster = "standalone"\n[objects]\nkind = "filesystem"\ndirectory = "{self.bucket}"\n'
            f'prefix = "{PREFIX}"\n'
        )
        self.ground = Ground()
        self.refuses: OffloaderError | None = None
        monkeypatch.setattr(verify, "metadata_store", lambda _: self)

    async def fill(self) -> Site:
        """Commit the segments."""
        await self.ground.enable()
        async with FilesystemStore(self.bucket, FakeClock()) as store:
            self.ground.objects = store
            (place,) = sites(load(self.config, {}))
            for number in (1, 2, 3):
                described = await self.ground.store(number, runs(number, 0, 4))
                segment = CommittedSegment.described(described, bucket=place.bucket, prefix=place.prefix)
                steps, _ = (await self.ground.map()).with_commit(segment, {})
                await self.ground.metadata.transact(steps)
        return self

    async def __aenter__(self) -> MetadataStore:
        """Connect."""
        connected = self.ground.tree.connect()
        if self.refuses is not None:
            connected.create = self._refuse  # type: ignore[method-assign]
            connected.transact = self._refuse  # type: ignore[method-assign]
        return connected

    async def __aexit__(self, *_: object) -> None:
        """Leave."""

    async def _refuse(self, *_: object, **__: object) -> None:
        assert self.refuses is not None
        raise self.refuses

    def verify(self, *words: str) -> Result:
        """Run the command in this process."""
        words = ("verify", "--config", str(self.config), *words)
        result = CliRunner().invoke(cli, words, prog_name="offloaderd")
        assert "Traceback" not in result.output
        return result

    async def damaged(self) -> tuple[int, ...]:
        """Return what is on record."""
        return await grant_records.damaged(self.ground.tree.connect(), TOPIC)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Three sound ledgers."""
    return virtually(Site(tmp_path, monkeypatch).fill())


def fates(result: Result) -> list[tuple[int, str]]:
    """Return what became of which ledger, as the lines of JSON say."""
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return [(one["ledger_id"], one["fate"]) for line in lines[:-1] for one in line["ledgers"]]


def test_ledgers_whose_copy_is_damaged_are_kept(site: Site) -> None:
    """In the metadata, where all see it; a second run changes nothing, and one without the map revokes nothing."""
    damage(site.bucket, data_key(2))
    assert site.verify().exit_code == 1
    assert virtually(site.damaged()) == ()
    result = site.verify("--against-map")
    assert result.exit_code == 1
    assert "  KEPT         ledger 2: its grant is revoked, so its source keeps it" in result.stdout
    assert f"offloadctl grants allow {TOPIC} 2" in result.stdout
    assert virtually(site.damaged()) == (2,)
    grant = virtually(grant_records.load(site.ground.tree.connect(), TOPIC, 2))
    assert grant is not None
    assert grant.grant.revoked_reason.startswith("its copy was found damaged by offloaderd verify: ")
    assert data_key(2) in grant.grant.revoked_reason
    assert fates(site.verify("--against-map", "--json")) == [(2, "kept")]


def test_what_is_missing_or_unreadable_is_kept_as_well(site: Site) -> None:
    """And what is sound is not."""
    damage(site.bucket, manifest_key(1))
    (data,) = [one for one in site.bucket.rglob("*") if str(one).endswith(data_key(3).rpartition("/")[2])]
    data.unlink()
    assert fates(site.verify("--against-map", "--level", "metadata", "--json")) == [(1, "kept"), (3, "kept")]
    assert virtually(site.damaged()) == (1, 3)


def test_a_dry_run_says_of_which_ledgers(site: Site) -> None:
    """And how it is done by hand."""
    damage(site.bucket, data_key(2))
    result = site.verify("--against-map", "--dry-run")
    assert result.exit_code == 1
    assert "  DRY-RUN      ledger 2: its grant was not revoked" in result.stdout
    assert f"offloadctl grants revoke {TOPIC} 2" in result.stdout
    assert virtually(site.damaged()) == ()
    assert site.verify("--dry-run").exit_code == 2


@pytest.mark.parametrize("error", [Denied("its access list forbids it"), Transient("it does not answer")])
def test_who_may_not_write_says_what_is_left_to_do(site: Site, error: OffloaderError) -> None:
    """As a reader of the metadata; the rest of the verification is done."""
    damage(site.bucket, data_key(1))
    damage(site.bucket, data_key(2))
    site.refuses = error
    result = site.verify("--against-map")
    assert result.exit_code == 1
    for ledger_id in (1, 2):
        assert f"  NOT-KEPT     ledger {ledger_id}: its grant could not be revoked: {error.message}" in result.stdout
        assert f"offloadctl grants revoke {TOPIC} {ledger_id}" in result.stdout
    assert "inspected 3 segments" in result.stdout


def test_a_ledger_that_is_gone_from_its_source_is_named(site: Site) -> None:
    """Nothing keeps it any more."""
    damage(site.bucket, data_key(2))
    grant = grant_record.encode(Grant(ledger_id=2, source_deleted_ms=5))
    virtually(site.ground.tree.connect().create(paths.grant(TOPIC, 2), grant))
    result = site.verify("--against-map")
    assert "  GONE         ledger 2: " in result.stdout
    assert "it may be the last one" in result.stdout
