"""Nothing in deploy/ listens to strangers: TLS, callers with certificates, files where they are looked for."""

from __future__ import annotations

import os
import runpy
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from offloaderd.access.certificates import TlsFiles, load_certificates
from offloaderd.core.section import is_loopback
from offloaderd.daemon.settings import load
from offloaderd.daemon.settings.rules import doubtful
from tests.unit.deploy.test_manifests import COMPOSE, DEPLOY, configurations, documents, pods, settings_of

DAEMONS = ("offloaderd-0", "offloaderd-1")
FILES = ("ca.crt", "daemon.key", "daemon.crt", "operator.key", "operator.crt")


@pytest.mark.parametrize("name", sorted(configurations()))
def test_a_port_that_is_reached_from_elsewhere_needs_a_certificate(name: str, tmp_path: Path) -> None:
    """Without exception; and somebody is granted something, or nobody could do anything."""
    settings = settings_of(name, tmp_path)
    assert not settings.grpc.allow_unauthenticated
    if not is_loopback(settings.grpc.host):
        assert None not in (settings.tls.cert_file, settings.tls.key_file, settings.tls.client_ca_file)
        assert settings.access.grants


def test_pods_have_the_files_that_their_settings_name(tmp_path: Path) -> None:
    """In the Secrets of which there are examples; offloadctl in the pod shows another certificate, of operators."""
    secrets = {one["metadata"]["name"]: one["stringData"] for _, one in documents() if one["kind"] == "Secret"}
    for name, pod, container in pods():
        settings = settings_of(name, tmp_path)
        tls, files = settings.tls, {}
        for what in ("offloaderd-tls", "offloaderd-operator"):
            (volume,) = [one for one in pod["volumes"] if one.get("secret", {}).get("secretName") == what]
            (mount,) = [one for one in container["volumeMounts"] if one["name"] == volume["name"]]
            files[what] = [f"{mount['mountPath']}/{key}" for key in secrets[what]]
        assert [tls.cert_file, tls.key_file, tls.client_ca_file] == files["offloaderd-tls"]
        environment = {one["name"]: one.get("value") for one in container["env"]}
        assert environment["OFFLOADCTL_TLS_CA"] == str(tls.client_ca_file)
        shown = [environment["OFFLOADCTL_TLS_CERT"], environment["OFFLOADCTL_TLS_KEY"]]
        assert shown == files["offloaderd-operator"]
        assert settings.access.grants[0] == "admin cert:offloaderd-operator *"
        assert not [grant for grant in settings.access.grants if "cert:offloaderd " in grant]


def test_a_broker_with_a_sidecar_may_offload_and_read() -> None:
    """Its driver shows a certificate of its own, of which there is an example, and calls its pod's daemon by TLS."""
    broker = yaml.safe_load((DEPLOY / "kubernetes" / "sidecar" / "pulsar-values.yaml").read_text())["broker"]
    (mount,) = broker["extraVolumeMounts"]
    (volume,) = [one for one in broker["extraVolumes"] if one["name"] == mount["name"]]
    (secret,) = [
        one["stringData"] for _, one in documents() if one["metadata"]["name"] == volume["secret"]["secretName"]
    ]
    options = dict(
        option.removeprefix("-Doffloaderd.").split("=")
        for option in broker["configData"]["PULSAR_EXTRA_OPTS"].split()
        if option.startswith("-Doffloaderd.")
    )
    assert (options["Address"], options["Tls"]) == ("localhost:7650", "true")
    files = [options[name] for name in ("TlsCertFile", "TlsKeyFile", "TlsTrustCertsFile")]
    assert files == [f"{mount['mountPath']}/{key}" for key in secret]
    assert (
        '"offload cert:pulsar-broker *","read cert:pulsar-broker *"'
        in configurations()["kubernetes/sidecar/offloaderd.yaml"]
    )


def test_the_daemon_may_read_its_secrets() -> None:
    """Files of a volume are root's, and the pod's fsGroup's if it has one: the mode lets the daemon read them."""
    checked = 0
    for name, pod, container in pods():
        security = pod.get("securityContext", {}) | container["securityContext"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        for volume in pod["volumes"]:
            for kind in mounted & {volume["name"]} and {"secret", "configMap"} & volume.keys():
                mode, group = volume[kind].get("defaultMode", 0o644), security.get("fsGroup")
                owners = {security["runAsGroup"], *security.get("supplementalGroups", ())}
                assert security["runAsUser"] != 0
                assert mode & 0o004 or (mode & 0o040 and (group is not None or 0 in owners)), f"{name}: {volume}"
                checked += 1
    assert checked == 6


def test_nodes_in_zookeeper_are_the_daemons_alone(tmp_path: Path) -> None:
    """With what the pods' environment says nothing of it is doubted."""
    for name, _, container in pods():
        given = {one["name"]: one.get("value", "secret") for one in container["env"] if "METADATA" in one["name"]}
        path = tmp_path / "offloaderd.toml"
        path.write_text(configurations()[name])
        settings = load(path, given)
        assert settings.metadata.acl == "creator"
        assert [found for found, _ in doubtful(settings)] == []


def made(place: Path) -> Path:
    """Run what the compose file runs to make certificates, in a directory."""
    service = COMPOSE["services"]["certificates"]
    program, script, *words = service["entrypoint"]
    assert (program, words) == ("python", ["--owner", "10001", "/certificates", *DAEMONS])
    assert f"./deploy/compose{script}:{script}:ro" in service["volumes"]
    subprocess.run([sys.executable, str(DEPLOY / "compose" / Path(script).name), str(place), *DAEMONS], check=True)
    return place


def test_the_certificates_of_compose_make_a_connection(tmp_path: Path) -> None:
    """By every name that a daemon is reached under, both ways; not by another name, and not without a certificate."""
    place = made(tmp_path / "new" / "one")
    settings = settings_of("compose/offloaderd.toml", tmp_path)
    served = [settings.tls.cert_file, settings.tls.key_file, settings.tls.client_ca_file]
    cert, key, ca = (place / Path(str(file)).name for file in served)
    load_certificates(TlsFiles(cert=cert, key=key, client_ca=ca))
    for host in (*DAEMONS, "localhost", "127.0.0.1"):
        shown = handshake(TlsFiles(cert=cert, key=key, client_ca=ca), host, place / "operator")
        assert shown == ((("commonName", "operator"),),)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(TlsFiles(cert=cert, key=key, client_ca=ca), "elsewhere", place / "operator")
    with pytest.raises(ssl.SSLError):
        handshake(TlsFiles(cert=cert, key=key, client_ca=ca), "localhost", None)
    environment = COMPOSE["services"]["offloaderd-0"]["environment"]
    assert (place / Path(environment["OFFLOADCTL_TLS_CERT"]).name).exists()
    assert (place / Path(environment["OFFLOADCTL_TLS_KEY"]).name).exists()


def test_certificates_that_are_there_stay(tmp_path: Path) -> None:
    """A second start trusts those of the first; keys are nobody else's to read."""
    before = (made(tmp_path) / "ca.crt").read_bytes()
    assert (made(tmp_path) / "ca.crt").read_bytes() == before
    assert (tmp_path / "daemon.key").stat().st_mode & 0o077 == 0


def test_certificates_that_were_interrupted_are_made_anew(tmp_path: Path) -> None:
    """Until the last one is there nothing is final: files that may not be written are replaced."""
    place = made(tmp_path)
    (place / "operator.crt").unlink()
    (place / "daemon.key.new").touch(0o400)
    with (place / "ca.crt").open("rb") as before:
        made(place)
        assert before.read() != (place / "ca.crt").read_bytes(), "written in place, which needs root"
    files = TlsFiles(cert=place / "daemon.crt", key=place / "daemon.key", client_ca=place / "ca.crt")
    assert handshake(files, "localhost", place / "operator") == ((("commonName", "operator"),),)
    assert {path.name for path in place.iterdir()} == set(FILES)


def test_certificates_belong_to_their_owner_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a directory that is made for them; no other file is given away, and without root nothing is made.

    Nobody else may read a key while it is written.
    """
    place, written, modes = tmp_path / "new", Path.write_bytes, set()

    def write(path: Path, content: bytes) -> int:
        modes.add(path.stat().st_mode & 0o777)
        return written(path, content)

    monkeypatch.setattr(Path, "write_bytes", write)
    program = runpy.run_path(str(DEPLOY / "compose" / "certificates.py"))["main"]
    owned: dict[str, object] = {}
    monkeypatch.setattr(os, "chown", lambda path, *ids: owned.update({path.stem: (ids, path.parent == place)}))
    monkeypatch.setattr(sys, "argv", ["certificates.py", str(place), "--owner", "10001"])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit):
        program()
    assert not place.exists()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program()
    assert owned.pop("new") == ((10001, 10001), False)
    assert owned == dict.fromkeys(FILES, ((10001, 10001), True))
    (place / "token.key").touch()
    (place / "operator.crt").unlink()
    owned.clear()
    program()
    assert owned == dict.fromkeys(FILES, ((10001, 10001), True))
    assert modes == {0o600}


def handshake(files: TlsFiles, host: str, client: Path | None) -> object:
    """Shake hands in memory; returns the subject that the server saw. Raises SSLError."""
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.client_ca))
    server_context.load_cert_chain(files.cert, files.key)
    server_context.verify_mode = ssl.CERT_REQUIRED
    client_context = ssl.create_default_context(cafile=str(files.client_ca))
    if client is not None:
        client_context.load_cert_chain(client.with_suffix(".crt"), client.with_suffix(".key"))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(there, back, server_side=True)
    caller = client_context.wrap_bio(back, there, server_hostname=host)
    waiting = [caller, server]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
        if not waiting:
            break
    certificate = server.getpeercert()
    assert certificate is not None
    return certificate["subject"]
