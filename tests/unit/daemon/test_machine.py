"""The machine: memory, ports, directories."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from offloaderd.access.settings import AccessSettings, TlsSettings
from offloaderd.api.settings import GrpcSettings
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.daemon.doctor import examination
from offloaderd.daemon.doctor.finding import Verdict
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.settings.rules import doubtful
from offloaderd.daemon.settings.sections import DaemonSettings, MemorySettings
from offloaderd.ledgers.settings import LedgersSettings, PulsarSettings
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.read.settings import CacheSettings

MiB = 1024**2
FILES = ObjectsSettings(kind="filesystem")


class TestMemory:
    """Budgets against what there is."""

    @pytest.mark.parametrize(
        ("there_mib", "verdict"),
        [(676, Verdict.WARN), (675, Verdict.FAIL), (845, Verdict.OK), (844, Verdict.WARN), (None, Verdict.OK)],
    )
    def test_bounds(self, there_mib: int | None, verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
        """The defaults take 676 MiB: less fails, less than a fifth to spare warns."""
        there = None if there_mib is None else there_mib * MiB
        monkeypatch.setattr(examination, "memory_bytes", lambda _: there)
        finding = examination.memory(Settings(objects=FILES))
        assert finding.verdict is verdict
        assert "676 MiB" in finding.found

    def test_several_processes_and_their_parent_each_need_memory_besides(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The budgets are those of the host."""
        monkeypatch.setattr(examination, "memory_bytes", lambda _: None)
        finding = examination.memory(Settings(objects=FILES, daemon=DaemonSettings(processes=4)))
        assert f"{576 + 5 * 100:,} MiB" in finding.found

    def test_a_container_has_what_its_limit_says(self, tmp_path: Path) -> None:
        """The least of all limits counts; `max` and a missing file are none."""
        limits = [tmp_path / name for name in ("none", "max", "small")]
        (tmp_path / "max").write_text("max\n")
        (tmp_path / "small").write_text(f"{64 * MiB}\n")
        assert examination.memory_bytes(limits) == 64 * MiB
        assert examination.memory_bytes(limits[:2]) != 64 * MiB

    def test_what_does_not_fit_names_the_settings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """So that somebody can change them."""
        monkeypatch.setattr(examination, "memory_bytes", lambda _: 1024 * MiB)
        finding = examination.memory(Settings(objects=FILES, memory=MemorySettings(buffer_bytes=2048 * MiB)))
        assert finding.verdict is Verdict.FAIL
        assert "memory.buffer_bytes" in finding.what_to_do


class TestPorts:
    """What the daemon would listen on."""

    def test_a_port_in_use_points_to_the_daemon_that_may_have_it(self) -> None:
        """It is no failure: the daemon may well be running."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            finding = examination.ports(Settings(objects=FILES, grpc=GrpcSettings(port=taken.getsockname()[1])))
        assert finding.verdict is Verdict.WARN
        assert "offloadctl doctor" in finding.what_to_do
        assert finding.found.startswith("grpc.port")


class TestDirectory:
    """Where the embedded store keeps its files."""

    def settings(self, path: Path) -> Settings:
        """Settings with small ledgers in a directory."""
        return Settings(
            objects=FILES, ledgers=LedgersSettings(kind="embedded", directory=str(path), ledger_bytes_max=1)
        )

    def test_one_that_will_be_made_is_well(self, tmp_path: Path) -> None:
        """The first directory above that exists is tried, and nothing is left in it."""
        finding = examination.directory(self.settings(tmp_path / "a" / "b"), "doctor-1")
        assert (finding.verdict, "will be made" in finding.found) == (Verdict.OK, True)
        assert list(tmp_path.iterdir()) == []

    def test_one_that_cannot_be_written_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the setting to change; root may write everywhere, so the write is made to fail."""

        def refuse(*_: object) -> int:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(type(tmp_path), "write_bytes", refuse)
        finding = examination.directory(self.settings(tmp_path), "doctor-1")
        assert finding.verdict is Verdict.FAIL
        assert f"ledgers.directory = {tmp_path}" in finding.what_to_do

    def test_a_full_disk_is_no_question_of_rights(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Room is what is missing."""

        def refuse(*_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(type(tmp_path), "write_bytes", refuse)
        finding = examination.directory(self.settings(tmp_path), "doctor-1")
        assert (finding.verdict, finding.what_to_do) == (Verdict.FAIL, "free some space on that disk")

    def test_a_disk_without_room_for_a_ledger_warns(self, tmp_path: Path) -> None:
        """A ledger of 2**60 bytes fits nowhere."""
        huge = LedgersSettings(kind="embedded", directory=str(tmp_path), ledger_bytes_max=2**60)
        finding = examination.directory(Settings(objects=FILES, ledgers=huge), "doctor-1")
        assert (finding.verdict, "make room" in finding.what_to_do) == (Verdict.WARN, True)


def tokens(identity: str = "alice", **values: Any) -> AccessSettings:  # noqa: ANN401 - settings of any kind
    """Take tokens, from somebody."""
    return AccessSettings(grants=(f"admin {identity} *",), token_secret_key=SecretStr("QUJD" * 12), **values)


def tls(**values: Any) -> TlsSettings:  # noqa: ANN401 - settings of any kind
    """Speak TLS."""
    return TlsSettings(cert_file="crt", key_file="key", **values)


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({}, None),
        ({"metadata": MetadataSettings(servers="zk-0:2181,zk-1:2181")}, "whoever reaches ZooKeeper"),
        ({"metadata": MetadataSettings(servers="127.0.0.1:2181,localhost:2182")}, None),
        (
            {
                "metadata": MetadataSettings(
                    servers="zookeeper:2181", acl="creator", username="u", password=SecretStr("p")
                )
            },
            None,
        ),
        (
            {"objects": ObjectsSettings(bucket="offload", endpoint="http://s3:8333")},
            "entries go in the clear to http://s3:8333",
        ),
        ({"objects": ObjectsSettings(bucket="offload", endpoint="http://127.0.0.1:8333")}, None),
        ({"objects": ObjectsSettings(bucket="offload", endpoint="https://s3.example")}, None),
        ({"access": tokens(), "tls": tls()}, "made for any other service"),
        ({"access": tokens(token_audience="us"), "tls": tls()}, None),
        ({"access": tokens(token_audience="us"), "tls": tls(client_ca_file="ca")}, "mean either"),
        ({"access": tokens("token:alice", token_audience="us"), "tls": tls(client_ca_file="ca")}, None),
        ({"pulsar": PulsarSettings(admin_url="http://broker:8080", admin_token_file="t")}, "in the clear"),
        ({"pulsar": PulsarSettings(admin_url="http://127.0.0.1:8080", admin_token_file="t")}, None),
        ({"pulsar": PulsarSettings(admin_url="http://broker:8080")}, None),
        ({"pulsar": PulsarSettings(admin_url="https://broker", admin_token_file="t")}, None),
        ({"ledgers": LedgersSettings(), "pulsar": PulsarSettings(admin_url="https://b")}, "no ledgers are tailed"),
        ({"grpc": GrpcSettings(host="10.0.0.1", allow_unauthenticated=True)}, "whoever reaches its port"),
        ({"bookkeeper": BookkeeperSettings(sasl_username="u", sasl_password=SecretStr("p"))}, "not encrypted"),
        (
            {"bookkeeper": BookkeeperSettings(tls=True, sasl_username="u", sasl_password=SecretStr("p"))},
            None,
        ),
    ],
)
def test_valid_settings_that_may_be_a_mistake(changes: dict[str, object], doubt: str | None) -> None:
    """Secrets in the clear, open ports, settings without effect; what is usual is not doubted."""
    settings = Settings.model_validate({"objects": FILES, "ledgers": LedgersSettings(kind="bookkeeper")} | changes)
    doubts = list(doubtful(settings))
    assert [doubt in found for found, _ in doubts if doubt] == ([True] if doubt else [])
    assert len(doubts) == (1 if doubt else 0)
    assert all(advice for _, advice in doubts)


class TestCacheDirectory:
    """The disk of the disk cache."""

    def test_a_mount_that_is_missing_is_told(self, tmp_path: Path) -> None:
        """On the file system of the root the directory is no disk of its own; on another one it is."""
        settings = Settings(objects=FILES, cache=CacheSettings(directory=str(tmp_path / "cache"), disk_bytes=64 * MiB))
        finding = examination.cache_directory(settings, tmp_path)
        assert finding.verdict is Verdict.WARN
        assert f"on the file system of {tmp_path}" in finding.found
        assert "RequiresMountsFor=" in finding.what_to_do
        other = examination.cache_directory(settings, Path("/proc"))
        assert (other.verdict, "will be made" in other.found) == (Verdict.OK, True)

    def test_a_disk_that_is_too_small_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the cache holds already counts as room."""
        cache = CacheSettings(directory=str(tmp_path), disk_bytes=100 * MiB, free_bytes=10 * MiB)
        settings = Settings(objects=FILES, cache=cache)
        with (tmp_path / "one.block").open("wb") as file:
            file.truncate(20 * MiB)
        for free_mib, verdict in ((90, Verdict.OK), (89, Verdict.WARN)):
            monkeypatch.setattr(shutil, "disk_usage", lambda _, mib=free_mib: SimpleNamespace(free=mib * MiB))
            assert examination.cache_directory(settings, Path("/proc")).verdict is verdict
