"""The doctor on a real ZooKeeper and a real S3 server, sound and broken, from the command and from the daemon."""

from __future__ import annotations

import json
import os
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl

from offloaderd.cli.offloaderd.__main__ import cli
from offloaderd.daemon.doctor.examination import examine
from offloaderd.daemon.doctor.finding import Verdict
from offloaderd.daemon.settings import Settings
from offloaderd.standalone.ports import free_ports
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from offloaderd.daemon.doctor.finding import CheckResult
    from tests.servers import S3Server

OWNER = make_digest_acl("admin", "secret", all=True)
LEDGER = """\
BookieMetadataFormatVersion\t2
quorumSize: 1
ensembleSize: 1
length: 0
lastEntryId: -1
state: IN_RECOVERY
segment {
  ensembleMember: "10.0.0.1:3181"
  firstEntryId: 0
}
digestType: CRC32C
password: ""
ackQuorumSize: 1
"""


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site on the test's servers."""
    return Site.at(tmp_path, zookeeper, s3_server, s3_bucket)


@contextmanager
def administrator(zookeeper: str) -> Iterator[Any]:
    """A client of ZooKeeper with the rights of a cluster's administrator."""
    client = KazooClient(hosts=zookeeper, auth_data=[("digest", "admin:secret")])
    client.start(timeout=PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def settings(site: Site, **sections: Mapping[str, object]) -> Settings:
    """Settings of a site that follows a cluster kept below a root of its own."""
    return Settings.model_validate(
        {
            "daemon": {"id": "one", "cluster": site.cluster},
            "metadata": {"servers": site.zookeeper, "session_timeout_s": 4, "connect_timeout_s": 3}
            | dict(sections.pop("metadata", {})),
            "objects": {
                "endpoint": site.endpoint,
                "access_key": site.access_key,
                "secret_key": site.secret_key,
                "bucket": site.bucket,
                "prefix": "team-a/",
                "connect_timeout_s": 1,
            }
            | dict(sections.pop("objects", {})),
            "grpc": {"port": 0},
            "http": {"port": 0},
            **sections,
        }
    )


async def examination(of: Settings) -> list[CheckResult]:
    """Run every check."""
    async with aclosing(examine(of, CLOCK)) as results:
        return [result async for result in results]


def by_name(results: Sequence[CheckResult]) -> dict[str, CheckResult]:
    """The results by the name of the check, each of which is there once."""
    found = {result.name: result for result in results}
    assert len(found) == len(results)
    return found


def nodes(zookeeper: str, path: str) -> list[str]:
    """Return the names below a node, and that it is not there as none."""
    with administrator(zookeeper) as client:
        return sorted(client.get_children(path)) if client.exists(path) else []


async def test_a_sound_site_has_nothing_to_complain_of(site: Site) -> None:
    """Every check passes, agrees on the time, and leaves neither node nor object, not even the root it had to make."""
    root = f"/doctor-{site.cluster}/deep"
    found = by_name(await examination(settings(site, metadata={"root": root})))
    assert {name: result.found for name, result in found.items() if result.verdict is not Verdict.OK} == {}
    assert {"zookeeper rights", "bucket multipart", "clock of ZooKeeper", "clock of the object store"} <= set(found)
    assert "standalone" in found["zookeeper servers"].found
    assert nodes(site.zookeeper, f"/doctor-{site.cluster}") == []
    assert f"doctor-{site.cluster}" not in nodes(site.zookeeper, "/")
    again = by_name(await examination(settings(site)))
    assert again["bucket list"].verdict is Verdict.OK


async def test_a_wrong_key_and_a_missing_bucket_name_their_settings(site: Site) -> None:
    """One failure each, with the setting to correct; the rest of the bucket is skipped."""
    wrong = {
        "objects.secret_key": {"secret_key": "wrong"},
        "objects.access_key": {"access_key": "nobody"},
        "objects.bucket": {"bucket": "no-such-bucket"},
    }
    for setting, change in wrong.items():
        found = by_name(await examination(settings(site, objects=change)))
        assert [name for name, result in found.items() if result.failed] == ["bucket"], setting
        assert setting in found["bucket"].what_to_do
        assert found["bucket write"].verdict is Verdict.SKIPPED


async def test_a_server_that_is_away_is_named(site: Site) -> None:
    """Nobody listens there: no session is tried, and what needs one is skipped."""
    port = free_ports(1, CLOCK)[0]
    away = settings(site, metadata={"servers": f"127.0.0.1:{port}"}, objects={"endpoint": f"http://127.0.0.1:{port}"})
    found = by_name(await examination(away))
    assert found["zookeeper servers"].found == f"127.0.0.1:{port}: Connection refused"
    assert found["zookeeper session"].verdict is found["zookeeper rights"].verdict is Verdict.SKIPPED
    assert "objects.endpoint" in found["bucket"].what_to_do


async def test_one_server_of_two_is_a_warning(site: Site) -> None:
    """The daemon works, but one more failure would stop it."""
    port = free_ports(1, CLOCK)[0]
    found = by_name(await examination(settings(site, metadata={"servers": f"{site.zookeeper},127.0.0.1:{port}"})))
    assert found["zookeeper servers"].verdict is Verdict.WARN
    assert f"127.0.0.1:{port}: Connection refused" in found["zookeeper servers"].found
    assert found["zookeeper session"].verdict is Verdict.OK


async def test_rights_that_are_missing_below_the_root(site: Site) -> None:
    """A root that may only be read fails with the path; nothing is left."""
    root = f"/read-only-{site.cluster}"
    with administrator(site.zookeeper) as client:
        client.create(root, acl=[OWNER, make_acl("world", "anyone", read=True)])
    found = by_name(await examination(settings(site, metadata={"root": root})))
    assert [name for name, result in found.items() if result.failed] == ["zookeeper rights"]
    assert f"all rights on {root}/{site.cluster}" in found["zookeeper rights"].what_to_do
    assert nodes(site.zookeeper, root) == []


class TestCluster:
    """The nodes of a cluster, in a folder of its own."""

    def follow(self, site: Site) -> dict[str, dict[str, object]]:
        """The sections of a daemon that follows it."""
        home = f"/cluster-{site.cluster}"
        return {
            "ledgers": {"kind": "bookkeeper"},
            "bookkeeper": {"ledgers_root": f"{home}/ledgers", "managed_ledgers_root": f"{home}/managed-ledgers"},
        }

    def build(self, site: Site, *acl: object, ledger: bytes | None = LEDGER.encode()) -> None:
        """Make a cluster of one topic with one ledger."""
        home, rights = f"/cluster-{site.cluster}", list(acl) or None
        with administrator(site.zookeeper) as client:
            client.create(f"{home}/ledgers", b"", makepath=True, acl=rights)
            if ledger is not None:
                client.create(f"{home}/ledgers/00/0000/L0007", ledger, makepath=True, acl=rights)
            topic = f"{home}/managed-ledgers/public/default/persistent/orders"
            client.create(topic, b"\x0a\x04\x08\x07\x20\x00", makepath=True, acl=rights)

    async def checks(self, site: Site) -> dict[str, CheckResult]:
        """The checks of the cluster's nodes."""
        found = by_name(await examination(settings(site, **self.follow(site))))
        return {name: result for name, result in found.items() if name.startswith("cluster ")}

    async def test_an_open_cluster_is_read_and_warned_of(self, site: Site) -> None:
        """The sample names topic, ledger, state and bookies; that everybody may write is said."""
        self.build(site)
        found = await self.checks(site)
        assert found["cluster ledgers"].verdict is Verdict.OK
        assert found["cluster topics"].verdict is Verdict.OK
        assert (
            found["cluster topics"].found
            == "read persistent://public/default/orders: ledger 7 is IN_RECOVERY on 10.0.0.1:3181"
        )
        assert found["cluster rights"].verdict is Verdict.WARN
        assert f"/cluster-{site.cluster}/ledgers and" in found["cluster rights"].found

    async def test_read_rights_are_all_it_takes(self, site: Site) -> None:
        """With READ alone everything passes, without a warning."""
        self.build(site, OWNER, make_acl("world", "anyone", read=True))
        assert {result.verdict for result in (await self.checks(site)).values()} == {Verdict.OK}

    async def test_a_cluster_without_bookies(self, site: Site) -> None:
        """None is registered: that is one failure, with what to do."""
        self.build(site)
        found = by_name(await examination(settings(site, **self.follow(site))))
        assert found["bookies"].failed
        assert found["bookies"].what_to_do.startswith("start the bookies")

    async def test_a_bookie_that_registers_nonsense(self, site: Site) -> None:
        """Its id tells no address and its node is none: what it registers is to be looked at; another is just gone."""
        self.build(site)
        with administrator(site.zookeeper) as client:
            available = f"/cluster-{site.cluster}/ledgers/available"
            client.create(f"{available}/opaque", b"\xff\xff", makepath=True)
            client.create(f"/cluster-{site.cluster}/ledgers/cookies/10.0.0.9:3181", b"", makepath=True)
        found = by_name(await examination(settings(site, **self.follow(site))))
        assert found["bookies"].found == "1 registered, 1 missing"
        assert found["bookie opaque"].failed
        assert "advertisedAddress" in found["bookie opaque"].what_to_do
        assert found["bookie 10.0.0.9:3181"].verdict is Verdict.WARN

    async def test_without_read_rights_it_says_where(self, site: Site) -> None:
        """Both roots are named."""
        self.build(site, OWNER)
        found = await self.checks(site)
        assert found["cluster ledgers"].failed
        assert found["cluster topics"].failed
        assert f"READ on /cluster-{site.cluster}/managed-ledgers" in found["cluster topics"].what_to_do

    async def test_another_clusters_zookeeper_is_noticed(self, site: Site) -> None:
        """Nothing is there: the settings that say where are named."""
        found = await self.checks(site)
        assert found["cluster ledgers"].failed
        assert "metadataStoreUrl" in found["cluster ledgers"].what_to_do
        assert found["cluster topics"].verdict is Verdict.WARN

    async def test_a_list_of_another_cluster_is_noticed(self, site: Site) -> None:
        """The topic's ledger is not there, though the roots are."""
        self.build(site, ledger=None)
        found = await self.checks(site)
        assert found["cluster topics"].verdict is Verdict.WARN
        assert "ledger 7" in found["cluster topics"].found


async def test_the_daemon_examines_itself(site: Site) -> None:
    """Over gRPC, with the daemon's own settings; a second examination at the same time is refused."""
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        found = {result.name: result async for result in client.examine(timeout_s=PATIENCE_S)}
        assert {name for name, result in found.items() if result.verdict not in {"ok", "skipped"}} == set()
        assert found["ports"].found == "the daemon listens on them"
        assert found["ledgers directory"].verdict == "ok"
        assert found["bucket delete"].found == "nothing is left of the probe"


def test_the_command_needs_no_daemon(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines for people, one document for programs; exit code 1 exactly when something failed."""
    for name in [name for name in os.environ if name.startswith("OFFLOADERD__")]:
        monkeypatch.delenv(name)
    for name, value in site.environment(*free_ports(2, CLOCK)).items():
        monkeypatch.setenv(name, value)
    well = CliRunner().invoke(cli, ["doctor"], prog_name="offloaderd")
    assert (well.exit_code, "FAIL" in well.stdout) == (0, False), well.output
    assert well.stdout.splitlines()[0].startswith("ok       settings")
    assert well.stderr == ""
    monkeypatch.setenv("OFFLOADERD__OBJECTS__BUCKET", "no-such-bucket")
    ill = CliRunner().invoke(cli, ["doctor", "--json"], prog_name="offloaderd")
    answer = json.loads(ill.stdout)
    assert (ill.exit_code, answer["passed"]) == (1, False)
    assert [check["name"] for check in answer["checks"] if check["verdict"] == "fail"] == ["bucket"]
    monkeypatch.setenv("OFFLOADERD__OFFLOAD__BLOCK_BYTES", "1GiB")
    invalid = CliRunner().invoke(cli, ["doctor"], prog_name="offloaderd")
    assert invalid.exit_code == 1
    assert "FAIL" in invalid.stdout
    assert "offload.block_bytes" in invalid.stdout
