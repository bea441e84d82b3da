"""`offloaderd health`: alive and ready, plain, under TLS and with client certificates; dead, hung, or never there."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from offloaderd.access.certificates import Watched, load_certificates
from offloaderd.cli.offloaderd import serve as command
from offloaderd.cli.offloaderd.__main__ import cli
from offloaderd.core.health import Health
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.daemon.http import HttpServer
from offloaderd.daemon.settings.sections import HttpSettings
from tests.authority import Authority

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from offloaderd.access.certificates import TlsFiles

REAL_TIME = "gRPC"


@pytest.fixture(autouse=True)
def no_settings_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the one who runs the tests has in the environment is none of theirs."""
    monkeypatch.delenv("OFFLOADERD_CONFIG", raising=False)


async def asked(directory: Path, port: int, *words: str, tls: str = "off", files: TlsFiles | None = None) -> Result:
    """Run the command beside the server, with a settings file that has a mistake in another section."""
    config = directory / "offloaderd.toml"
    certificate = f'[tls]\ncert_file = "{files.cert}"\nkey_file = "{files.key}"\n' if files is not None else ""
    config.write_text(f'[http]\nhost = "0.0.0.0"\nport = {port}\ntls = "{tls}"\n{certificate}[offload]\nsegmnt = 1\n')
    words = ("health", "--config", str(config), *words)
    return await asyncio.to_thread(CliRunner().invoke, cli, list(words), prog_name="offloaderd")


async def test_alive_and_ready_are_two_questions(tmp_path: Path) -> None:
    """A daemon that waits for the bucket is alive; with --ready it is not, and says why."""
    health = Health()
    async with HttpServer(HttpSettings(port=0), Metrics(), health) as server:
        port = server.port
        health.starting("waiting for bucket b")
        alive, ready = await asked(tmp_path, port), await asked(tmp_path, port, "--ready")
        assert (alive.exit_code, alive.stdout) == (0, "alive\n")
        assert ready.exit_code == 1
        assert "waiting for bucket b" in ready.stderr
        health.serving()
        assert (await asked(tmp_path, port, "--ready")).exit_code == 0
    gone = await asked(tmp_path, port)
    assert (gone.exit_code, gone.stdout) == (1, "")
    assert f"the daemon at 127.0.0.1:{port} does not answer" in gone.stderr


@pytest.mark.parametrize("tls", ["server", "mutual"])
async def test_it_calls_as_the_settings_are(tmp_path: Path, tls: str) -> None:
    """By TLS, and with the daemon's own certificate where clients need one."""
    files = (ca := Authority(tmp_path)).server(ca.file)
    watched = Watched(files.all, lambda: load_certificates(files))
    async with HttpServer(HttpSettings.model_validate({"port": 0, "tls": tls}), Metrics(), Health(), watched) as server:
        alive = await asked(tmp_path, server.port, tls=tls, files=files)
        assert (alive.exit_code, alive.stdout) == (0, "alive\n")


async def test_a_daemon_that_does_not_take_its_own_certificate_is_alive(tmp_path: Path) -> None:
    """Its loop has answered the handshake; whether it is ready nobody was told."""
    clients = Authority(tmp_path, "clients")
    files = Authority(tmp_path).server(clients.file)
    watched = Watched(files.all, lambda: load_certificates(files))
    health = Health()
    health.serving()
    async with HttpServer(HttpSettings(port=0, tls="mutual"), Metrics(), health, watched) as server:
        assert (await asked(tmp_path, server.port, tls="mutual", files=files)).exit_code == 0
        ready = await asked(tmp_path, server.port, "--ready", tls="mutual", files=files)
    assert ready.exit_code == 1
    assert "sign it with tls.client_ca_file" in ready.stderr


@pytest.mark.parametrize("tls", ["off", "server", "mutual"])
async def test_a_loop_that_hangs_is_not_alive(tmp_path: Path, tls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel accepts its connections; nobody answers them."""
    monkeypatch.setattr(command, "ANSWER_S", 0.1)
    with socket.socket() as hung:
        hung.bind(("127.0.0.1", 0))
        hung.listen()
        files = (ca := Authority(tmp_path)).server(ca.file)
        found = await asked(tmp_path, hung.getsockname()[1], tls=tls, files=files)
    assert found.exit_code == 1
    assert "does not answer" in found.stderr


async def test_any_free_port_cannot_be_asked(tmp_path: Path) -> None:
    """A mistake in the settings, with what to do."""
    assert (await asked(tmp_path, 0)).exit_code == 2
