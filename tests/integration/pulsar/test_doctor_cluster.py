"""The doctor on real bookies and a real Pulsar: each bookie by itself (sound, frozen, killed, gone), the admin API."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from offloaderd.daemon.doctor.examination import examine
from offloaderd.daemon.doctor.finding import Verdict
from offloaderd.daemon.settings import Settings
from tests.integration.processes import CLOCK
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offloaderd.daemon.doctor.finding import CheckResult
    from tests.real.bookies import BookKeeperCluster
    from tests.real.pulsar import PulsarServer


def settings(zookeeper: str, directory: Path, **sections: Mapping[str, object]) -> Settings:
    """Settings of a daemon that follows a cluster and stores in a directory."""
    return Settings.model_validate(
        {
            "daemon": {"cluster": f"c{CLOCK.uuid().hex}"},
            "metadata": {"servers": zookeeper, "session_timeout_s": 4},
            "objects": {"kind": "filesystem", "directory": str(directory)},
            "ledgers": {"kind": "bookkeeper"},
            "grpc": {"port": 0},
            "http": {"port": 0},
            **sections,
        }
    )


async def examination(of: Settings) -> dict[str, CheckResult]:
    """Run every check; by name."""
    async with aclosing(examine(of, CLOCK)) as results:
        found = [result async for result in results]
    assert len({result.name for result in found}) == len(found)
    return {result.name: result for result in found}


def bookies(found: Mapping[str, CheckResult]) -> dict[str, CheckResult]:
    """The checks of single bookies."""
    return {name.removeprefix("bookie "): result for name, result in found.items() if name.startswith("bookie ")}


async def test_three_sound_bookies(bookkeeper: BookKeeperCluster, tmp_path: Path) -> None:
    """Each is reached at its address and known to read in batches; without Pulsar there is no topic yet."""
    found = await examination(settings(bookkeeper.zookeeper, tmp_path))
    assert found["bookies"].found.startswith("3 registered")
    assert not any(result.failed for result in found.values())
    each = bookies(found)
    assert {bookie.bookie_id for bookie in bookkeeper.bookies} <= set(each)
    for bookie in bookkeeper.bookies:
        result = each[bookie.bookie_id]
        assert result.verdict is Verdict.OK, result
        assert result.found.startswith(f"{bookie.bookie_id} answered in ")
        assert result.found.endswith(" ms, batch reads")
    assert found["cluster ledgers"].found == "/ledgers, layout Hierarchical"


async def test_a_frozen_one_and_a_dead_one_are_told_from_the_others(
    bookkeeper: BookKeeperCluster, tmp_path: Path
) -> None:
    """Registered but silent, registered but refusing; the third is well all the same."""
    frozen, dead, well = bookkeeper.bookies
    frozen.freeze()
    await dead.kill()
    impatient = {"request_timeout_s": 1, "connect_timeout_s": 1, "hedge_s": 1}
    each = bookies(await examination(settings(bookkeeper.zookeeper, tmp_path, bookkeeper=impatient)))
    assert each[well.bookie_id].verdict is Verdict.OK
    assert each[frozen.bookie_id].failed
    assert each[frozen.bookie_id].what_to_do
    assert each[dead.bookie_id].verdict is not Verdict.OK


async def test_one_that_is_gone_is_known_by_its_cookie(bookkeeper: BookKeeperCluster, tmp_path: Path) -> None:
    """It is no longer registered: a warning with the command that takes it out for good."""
    gone = bookkeeper.bookies[0]
    await gone.stop()
    async with asyncio.timeout(PATIENCE_S):
        while gone.bookie_id in bookkeeper.available():
            await CLOCK.sleep(0.1)
    found = await examination(settings(bookkeeper.zookeeper, tmp_path))
    assert "1 missing" in found["bookies"].found
    result = bookies(found)[gone.bookie_id]
    assert result.verdict is Verdict.WARN
    assert f"decommissionbookie -bookieid {gone.bookie_id}" in result.what_to_do


async def test_credentials_and_certificates(bookkeeper: BookKeeperCluster, tmp_path: Path) -> None:
    """TLS that the bookies do not offer, and a file that is none, are told with the settings to look at."""
    each = bookies(await examination(settings(bookkeeper.zookeeper, tmp_path, bookkeeper={"tls": True})))
    for bookie in bookkeeper.bookies:
        assert each[bookie.bookie_id].failed
        assert "bookkeeper.tls" in each[bookie.bookie_id].what_to_do
    missing = {"tls": True, "tls_ca_file": str(tmp_path / "none.pem")}
    found = await examination(settings(bookkeeper.zookeeper, tmp_path, bookkeeper=missing))
    assert found["bookies"].failed
    assert "tls_ca_file" in found["bookies"].what_to_do
    assert bookies(found) == {}


async def test_a_whole_pulsar(pulsar_server: PulsarServer, tmp_path: Path) -> None:
    """Opaque bookie id, a topic of the cluster, the admin API: all well."""
    assert await pulsar_server.put(f"persistent/public/default/t-{CLOCK.uuid().hex}") == 204
    found = await examination(
        settings(pulsar_server.zookeeper, tmp_path, pulsar={"admin_url": pulsar_server.admin_url})
    )
    unwell = {name: result for name, result in found.items() if result.verdict not in {Verdict.OK, Verdict.SKIPPED}}
    assert set(unwell) == {"cluster rights"}, unwell
    assert found["admin api"].found == f"{pulsar_server.admin_url} answers without a token"
    assert "read persistent://" in found["cluster topics"].found
    assert len(bookies(found)) == 1
