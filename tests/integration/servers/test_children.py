"""The real servers as children: they start over what is there, fail in one line, and never outlive their owner."""

from __future__ import annotations

import os
import signal
import socket
import stat
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import BucketMissing, Denied, InvalidConfig, Transient
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.standalone.ports import GRPC_OFFSET, LOOPBACK, free_ports, is_free
from offloaderd.standalone.process import ServerDied
from offloaderd.standalone.seaweed import PORT_COUNT, SeaweedOptions, seaweed
from offloaderd.standalone.zookeeper import ZooKeeperOptions, zookeeper
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import S3Server

CLOCK = SystemClock()


def seaweed_options(directory: Path) -> SeaweedOptions:
    """Options with free ports."""
    master, volume, filer, s3 = free_ports(PORT_COUNT, CLOCK, grpc=True)
    return SeaweedOptions(directory=directory, ports=(master, volume, filer, s3), access_key="user", secret_key="hush")


def s3_options(endpoint: str, bucket: str, access_key: str, secret_key: str) -> ObjectsSettings:
    """Options for a client."""
    return ObjectsSettings(bucket=bucket, endpoint=endpoint, access_key=access_key, secret_key=secret_key)


async def test_s3_restart(tmp_path: Path) -> None:
    """Objects and open uploads survive a kill right after they were stored; a stop frees all ports."""
    options = seaweed_options(tmp_path / "s3")
    async with seaweed(options, CLOCK) as server, S3Store(s3_options(server.endpoint, "bucket", "user", "hush")) as s3:
        await s3.create_bucket()
        await s3.put("kept", b"x" * 300_000, metadata={"a": "1"})
        upload = await s3.create_upload("open")
        part = await s3.upload_part("open", upload, 1, [b"y" * 5_000_000])
        await s3.put("last", b"z")
        assert server.child.pid is not None
        os.kill(server.child.pid, signal.SIGKILL)
        with pytest.raises(ServerDied, match="SIGKILL"):
            await server.child.watch()
        with pytest.raises(Transient, match="no connection"):
            await s3.get("kept")
    async with seaweed(options, CLOCK) as server, S3Store(s3_options(server.endpoint, "bucket", "user", "hush")) as s3:
        assert await s3.get("last") == b"z"
        assert await s3.get("kept") == b"x" * 300_000
        assert (await s3.head("kept")).metadata == {"a": "1"}
        assert list(await s3.list_parts("open", upload)) == [part]
        await s3.complete_upload("open", upload, [part])
        assert await s3.get("open") == b"y" * 5_000_000
    assert all(is_free(port) and is_free(port + GRPC_OFFSET) for port in options.ports)


async def test_s3_secrets(tmp_path: Path) -> None:
    """The credentials are in a file that only this user can read, and not on the command line."""
    options = seaweed_options(tmp_path / "s3")
    async with seaweed(options, CLOCK) as server:
        mode = (options.directory / "s3.json").stat().st_mode
        assert stat.S_IMODE(mode) == 0o600
        with open(f"/proc/{server.child.pid}/cmdline", "rb") as file:  # noqa: ASYNC230, PTH123 - no disk behind it
            command_line = file.read()
        assert b"hush" not in command_line
        assert b"-master.telemetry=false" in command_line
        assert b"-ip.bind=127.0.0.1" in command_line


async def test_s3_wrong_settings(s3_server: S3Server, s3_bucket: str) -> None:
    """Wrong keys and a bucket that is not there are told apart, each with what to set."""
    endpoint, access, secret = s3_server
    async with S3Store(s3_options(endpoint, s3_bucket, access, secret)) as s3:
        await s3.check()
        await s3.create_bucket()
    for keys in ((access, "wrong"), ("wrong", secret)):
        async with S3Store(s3_options(endpoint, s3_bucket, *keys)) as s3:
            for attempt in (s3.check(), s3.put("k", b"x"), s3.get("k"), s3.create_upload("k")):
                with pytest.raises(Denied, match=r"objects\.access_key"):
                    await attempt
            with pytest.raises(Denied):
                await s3.head("k")
    async with S3Store(s3_options(endpoint, "no-such-bucket", access, secret)) as s3:
        for attempt in (s3.check(), s3.put("k", b"x"), s3.get("k"), s3.head("k"), s3.create_upload("k")):
            with pytest.raises(BucketMissing, match=r"no-such-bucket.*objects\.bucket"):
                await attempt


async def test_zookeeper_restart(tmp_path: Path) -> None:
    """What was written is there after a kill, and after a stop the port is free."""
    kazoo = pytest.importorskip("kazoo.client")
    options = ZooKeeperOptions(directory=tmp_path / "zk", port=free_ports(1, CLOCK)[0])
    for kill in (True, False):
        async with zookeeper(options, CLOCK) as server:
            client = kazoo.KazooClient(server.address)
            client.start(timeout=PATIENCE_S)
            try:
                assert ("/kept" in [f"/{name}" for name in client.get_children("/")]) is not kill
                client.ensure_path("/kept")
            finally:
                client.stop()
                client.close()
            if kill:
                assert server.child.pid is not None
                os.kill(server.child.pid, signal.SIGKILL)
                with pytest.raises(ServerDied, match="ZooKeeper was ended by SIGKILL"):
                    await server.child.watch()
    assert is_free(options.port)


@pytest.mark.parametrize("kind", ["zookeeper", "seaweed"])
async def test_port_in_use(tmp_path: Path, kind: str) -> None:
    """A port in use is named before anything is started, gRPC's of the S3 server too."""
    zookeeper_options = ZooKeeperOptions(directory=tmp_path, port=free_ports(1, CLOCK)[0])
    weed_options = seaweed_options(tmp_path)
    taken = zookeeper_options.port if kind == "zookeeper" else weed_options.ports[2] + GRPC_OFFSET
    server = zookeeper(zookeeper_options, CLOCK) if kind == "zookeeper" else seaweed(weed_options, CLOCK)
    named = f"port {taken} for .* is in use"
    with socket.create_server((LOOPBACK, taken)), pytest.raises(InvalidConfig, match=named):
        async with server:
            pass


async def test_port_lost_in_a_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is taken between the check and the start is understood from what the server says."""
    monkeypatch.setattr("offloaderd.standalone.zookeeper.require_free", lambda *_: None)
    options = ZooKeeperOptions(directory=tmp_path, port=free_ports(1, CLOCK)[0])
    named = "its port is in use"
    with socket.create_server((LOOPBACK, options.port)), pytest.raises(InvalidConfig, match=named):
        async with zookeeper(options, CLOCK):
            pass


async def test_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra that brings the servers, each says what to install."""
    monkeypatch.setattr("shutil.which", lambda _name: None)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    for server in (
        seaweed(seaweed_options(tmp_path), CLOCK),
        zookeeper(ZooKeeperOptions(directory=tmp_path, port=free_ports(1, CLOCK)[0]), CLOCK),
    ):
        with pytest.raises(InvalidConfig, match=r"pip install 'offloaderd\[standalone\]'"):
            async with server:
                pass


async def test_broken_data(tmp_path: Path) -> None:
    """A server that cannot read its own data dies in one line that has its last words and the log's place."""
    options = ZooKeeperOptions(directory=tmp_path, port=free_ports(1, CLOCK)[0])
    (tmp_path / "data").write_text("no directory")
    with pytest.raises(ServerDied, match=r"ZooKeeper ended with exit code \d+ \(.*log: .*zookeeper\.log\)") as caught:
        async with zookeeper(options, CLOCK):
            pass
    assert "\n" not in str(caught.value)
