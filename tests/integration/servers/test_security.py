"""A daemon behind TLS, certificates and tokens, as operators run it; and no secret in anything that it says."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloaderd.client import Trust
from offloaderd.core.model import TopicName
from tests.authority import Authority, token
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from tests.authority import Pair
    from tests.servers import S3Server

SECRET = b"canary-token-secret-0123456789-abcdef"
SCRIPTS = Path(sys.executable).parent


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    """The authority that both sides trust."""
    return Authority(tmp_path)


@pytest.fixture
def site(tmp_path: Path, ca: Authority, zookeeper: str, s3_server: S3Server, s3_bucket: str) -> Site:
    """A site whose daemon listens everywhere, for callers with certificates and tokens."""
    found = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    files = ca.server(ca.file)
    found.settings["grpc"] = {"host": "0.0.0.0"}  # noqa: S104 - which it may, being guarded
    found.settings["http"] = {"tls": "server"}
    found.settings["tls"] = {
        "cert_file": files.cert,
        "key_file": files.key,
        "client_ca_file": files.client_ca,
        "reload_s": 0.2,
    }
    found.settings["access"] = {
        "grants": "admin alice *; read bob public/default/*",
        "token_secret_key": b64encode(SECRET).decode(),
    }
    found.settings["tracing"] = {"enabled": True, "endpoint": "http://127.0.0.1:1", "headers": "key=canary-header"}
    found.settings["pulsar"] = {"admin_url": "https://127.0.0.1:1", "admin_token": "canary-admin-token"}
    return found


async def command(name: str, *words: str, **environment: str) -> tuple[int, str]:
    """Run one of the commands; returns its exit code and all that it said."""
    process = await asyncio.create_subprocess_exec(
        str(SCRIPTS / name),
        *words,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


async def test_who_may_do_what_from_the_command_line_and_nothing_shows_a_secret(site: Site, ca: Authority) -> None:
    """offloadctl with certificates and tokens, good and bad; then everything that was said is searched for secrets."""
    alice, bob = ca.issue("alice"), ca.issue("bob")
    https = ssl.create_default_context(cafile=str(ca.file))
    spoken: list[str] = []
    async with DaemonProcess(site) as daemon:
        trust = Trust(ca_file=ca.file, cert_file=alice.cert, key_file=alice.key)
        async with daemon.client(trust) as client:
            await client.enable(TopicName.parse("public/default/orders"))

        async def ctl(*words: str, pair: Pair | None = alice, **environment: str) -> tuple[int, str]:
            shown = ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key)] if pair is not None else []
            code, said = await command(
                "offloadctl", "--address", daemon.address, "--tls-ca", str(ca.file), *shown, *words, **environment
            )
            spoken.append(said)
            return code, said

        assert (await ctl("status"))[0] == 0
        code, said = await ctl("status", "orders", pair=bob)
        assert code == 0
        code, said = await ctl("topics", "disable", "orders", pair=bob)
        assert (code, "bob may not call DisableTopic: the role admin" in said) == (7, True)
        code, said = await ctl("status", pair=None)
        assert (code, "none was shown" in said) == (7, True)
        file = site.directory / "token"
        file.write_text(token(SECRET, "alice") + "\n")
        assert (await ctl("status", "--token-file", str(file), pair=bob))[0] == 0
        stale = token(SECRET, "alice", exp=1)
        code, said = await ctl("status", OFFLOADCTL_TOKEN=stale)
        assert (code, "the token has expired" in said) == (7, True)
        spoken += [(await daemon.http(path, https))[1] for path in ("/metrics", "/readyz", "/metrics/topics")]
        bearer = f"Authorization: Bearer {token(SECRET, 'alice')}"
        async with asyncio.timeout(PATIENCE_S):  # the page shows statuses that may be some seconds older than the topic
            while "orders" not in (await daemon.http("/status.json", https, bearer))[1]:
                await CLOCK.sleep(0.05)
        for name, code in (("alice", 200), ("bob", 403)):
            for path in ("/status", "/status.json"):
                answer = await daemon.http(path, https, f"Authorization: Bearer {token(SECRET, name)}")
                assert (answer[0], "orders" in answer[1]) == (code, code == 200)
                spoken.append(answer[1])
        assert (await daemon.http("/status", https))[0] == 401
        code, said = await ctl("doctor", "--json")
        assert '"check"' in said or '"name"' in said
        environment = site.environment(daemon.grpc_port, daemon.http_port)
        for words in (["check-config"], ["check-config", "--json"]):
            code, said = await command("offloaderd", *words, **environment)
            assert code == 0
            spoken.append(said)
        broken = {**environment, "OFFLOADERD__ACCESS__TOKEN_PUBLIC_KEY": "canary-public", "OFFLOADERD__GRPC__PORT": "x"}
        code, said = await command("offloaderd", "check-config", **broken)
        assert code == 2
        spoken.append(said)
    spoken.append(daemon.said())
    audited = [one for line in daemon.said().splitlines() if (one := json.loads(line))["event"] == "audit.call"]
    assert [(one["identity"], one["method"], one["code"], one["topics"]) for one in audited[:2]] == [
        ("alice", "EnableTopic", "OK", ["public/default/orders"]),
        ("bob", "DisableTopic", "PermissionDenied", []),
    ]
    assert {one["logger"] for one in audited} == {"offloaderd.audit"}
    secrets = [SECRET.decode(), b64encode(SECRET).decode(), "canary", stale, token(SECRET, "alice"), site.secret_key]
    for secret in secrets:
        assert not [said for said in spoken if secret in said]


async def test_a_certificate_that_cannot_be_used_ends_the_start_with_one_line(site: Site) -> None:
    """Exit code 2, the setting and the file, before anything is listened on."""
    Path(str(site.settings["tls"]["key_file"])).write_text("canary, no key")
    async with DaemonProcess(site) as daemon:
        assert await daemon.ended() == 2
    assert "tls.key_file" in daemon.said()
    assert "canary" not in daemon.said()
    assert "Traceback" not in daemon.said()
