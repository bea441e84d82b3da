"""The doctor on a bucket of Google Cloud Storage: sound, absent, and with a right too few."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from offloaderd.daemon.doctor.examination import examine
from offloaderd.daemon.doctor.finding import Verdict
from offloaderd.daemon.settings import Settings
from offloaderd.objects.gcs.errors import RIGHTS
from offloaderd.objects.gcs.store import GcsStore
from tests.gcs_server import GcsServer, gcs_server
from tests.integration.processes import CLOCK
from tests.token_server import token_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from offloaderd.daemon.doctor.finding import CheckResult


@pytest.fixture
async def server() -> AsyncIterator[GcsServer]:
    """A server with an empty bucket."""
    async with gcs_server("segments") as server:
        yield server


def settings(zookeeper: str, **objects: str) -> Settings:
    """Settings of a daemon that stores there."""
    cluster = f"c{CLOCK.uuid().hex[:12]}"
    return Settings.model_validate(
        {
            "daemon": {"id": "one", "cluster": cluster},
            "metadata": {"servers": zookeeper, "session_timeout_s": 4, "connect_timeout_s": 3},
            "objects": {"kind": "gcs", "prefix": "team-a/", **objects},
            "grpc": {"port": 0},
            "http": {"port": 0},
        }
    )


async def examined(of: Settings) -> dict[str, CheckResult]:
    """Run every check; the results by name."""
    async with aclosing(examine(of, CLOCK)) as results:
        return {result.name: result async for result in results}


@pytest.mark.witness("zookeeper")
async def test_a_sound_bucket_has_nothing_to_complain_of(server: GcsServer, zookeeper: str) -> None:
    """Objects, uploads in parts and the clock are tried, and nothing is left of it."""
    found = await examined(settings(zookeeper, bucket="segments", endpoint=server.endpoint))
    assert {name: result.found for name, result in found.items() if result.verdict is not Verdict.OK} == {}
    assert {"bucket multipart", "clock of the object store"} <= set(found)
    assert server.buckets["segments"] == {}


async def test_soft_delete_is_warned_of(server: GcsServer, zookeeper: str) -> None:
    """Google's default keeps, and bills, the parts of every upload for a week."""
    server.bucket = {"softDeletePolicy": {"retentionDurationSeconds": "604800"}}
    found = await examined(settings(zookeeper, bucket="segments", endpoint=server.endpoint))
    assert found["bucket versions"].verdict is Verdict.WARN
    assert "7 days" in found["bucket versions"].found
    assert "--clear-soft-delete" in found["bucket versions"].what_to_do


async def test_a_bucket_that_is_not_there_is_named(server: GcsServer, zookeeper: str) -> None:
    """With the setting that names it."""
    found = await examined(settings(zookeeper, bucket="no-such-bucket", endpoint=server.endpoint))
    assert "objects.bucket" in found["bucket"].what_to_do


@pytest.mark.witness("zookeeper")
async def test_a_right_too_few_is_named(server: GcsServer, zookeeper: str, tmp_path: Path) -> None:
    """With a service account's token, whose role lacks what parts are deleted with."""
    right = "storage.objects.delete"
    server.tokens = {"first": frozenset(RIGHTS.values()) - {right}}
    async with token_server() as issuer:
        path = issuer.service_account(tmp_path / "key.json")
        given = {"bucket": "segments", "endpoint": server.endpoint, "credentials_file": str(path)}
        found = await examined(settings(zookeeper, **given))
    failed = [result for result in found.values() if result.failed]
    assert failed
    assert any(f"allow {right}" in result.what_to_do for result in failed)


async def test_the_doctor_is_content_with_the_emulator(gcs_emulator: str, zookeeper: str) -> None:
    """The same on a server that is not ours."""
    of = settings(zookeeper, bucket=f"test-{CLOCK.uuid().hex}", endpoint=gcs_emulator)
    async with GcsStore(of.objects) as store:
        await store.create_bucket()
    found = await examined(of)
    assert {name: result.found for name, result in found.items() if result.verdict is not Verdict.OK} == {}
