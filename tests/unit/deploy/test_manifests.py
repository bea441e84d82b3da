"""Dockerfile, compose file, Kubernetes manifests and unit: valid by their own rules, and at one with the settings."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml
from compose_spec.models import ComposeSpecification

from offloaderd import __version__
from offloaderd.cli.program import USAGE
from offloaderd.core.units import parse_bytes
from offloaderd.daemon.doctor.examination import BASE_BYTES, MEMORY_WARN_SHARE
from offloaderd.daemon.settings import Settings, load

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
SCHEMAS = ("1.29", "1.33", "1.37")
"""Kubernetes of the last years, and the newest that there is a schema for."""
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
IMAGE = f"offloaderd:{__version__}"
PORTS = {7650, 7651}


def program(name: str) -> str:
    """A program of the environment that the tests run in."""
    return str(Path(sys.executable).with_name(name))


def documents() -> list[tuple[str, dict[str, Any]]]:
    """Every object of every manifest, with its file; what kustomize and Helm read is none."""
    return [
        (str(path.relative_to(DEPLOY)), document)
        for path in sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if document and document.get("kind", "Kustomization") != "Kustomization"
    ]


def pods() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """`(file, pod, its container of offloaderd)` of the StatefulSet, and of the Pulsar chart's brokers."""
    for name, document in documents():
        if document["kind"] == "StatefulSet":
            pod = document["spec"]["template"]["spec"]
            (container,) = [one for one in pod["containers"] if one["name"] == "offloaderd"]
            yield name, pod, container
    broker = yaml.safe_load((DEPLOY / "kubernetes" / "sidecar" / "pulsar-values.yaml").read_text())["broker"]
    (container,) = broker["initContainers"]
    assert container["restartPolicy"] == "Always", "else the broker would wait for its end"
    pod = {"terminationGracePeriodSeconds": broker["gracePeriod"], "volumes": broker["extraVolumes"]}
    yield "kubernetes/sidecar/offloaderd.yaml", pod, container


def configurations() -> dict[str, str]:
    """The text of every configuration that deploy/ has, by its file."""
    found = {str(path.relative_to(DEPLOY)): path.read_text() for path in sorted(DEPLOY.rglob("*.toml"))}
    for name, document in documents():
        if document["kind"] == "ConfigMap":
            found[name] = document["data"]["offloaderd.toml"]
    return found


def settings_of(name: str, directory: Path) -> Settings:
    """Read a configuration of deploy/. Raises InvalidConfig."""
    path = directory / "offloaderd.toml"
    path.write_text(configurations()[name])
    return load(path, {})


def limit_of(name: str) -> int:
    """The memory limit, in bytes, that stands beside a configuration."""
    if name == "compose/offloaderd.toml":
        return int(parse_bytes(re.sub(r"m$", "MiB", COMPOSE["services"]["offloaderd-0"]["mem_limit"])))
    if name == "systemd/offloaderd.toml":
        unit = (DEPLOY / "systemd" / "offloaderd.service").read_text()
        return parse_bytes(re.findall(r"(?m)^MemoryMax=(\d+)M$", unit)[0] + "MiB")
    (limit,) = [container["resources"]["limits"]["memory"] for file, _, container in pods() if file == name]
    return parse_bytes(f"{limit}B")


def test_the_dockerfile_is_sound() -> None:
    """hadolint finds nothing, down to the level of style; what is ignored there says so."""
    done = subprocess.run([program("hadolint"), str(ROOT / "Dockerfile")], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint_would_say_something(tmp_path: Path) -> None:
    """The check above can fail."""
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian:latest\nRUN cd /tmp && sudo true\n")
    assert subprocess.run([program("hadolint"), str(bad)], check=False, capture_output=True).returncode == 1


def test_the_image_runs_as_nobody_in_particular() -> None:
    """Every final stage ends with a user that is a number and not root; both console scripts are its commands."""
    stages = re.split(r"(?m)^FROM ", (ROOT / "Dockerfile").read_text())[1:]
    users = {stage.split()[2]: re.findall(r"(?m)^USER (\S+)", stage) for stage in stages}
    parents = {stage.split()[2]: stage.split()[0] for stage in stages}
    for target in ("offloaderd", "spark"):
        own = users[target] or users[parents[target]]
        assert own[-1] == "10001:10001", target
    assert list(users)[-1] == "offloaderd", "what is built unless a target is named"


@pytest.mark.parametrize("name", sorted(configurations()))
def test_every_configuration_is_valid_and_its_memory_fits(name: str, tmp_path: Path) -> None:
    """It has no mistake, and its budgets leave room in the limit beside it, so that the doctor has nothing to say."""
    settings = settings_of(name, tmp_path)
    budgets = settings.memory
    needed = budgets.buffer_bytes + budgets.upload_bytes + budgets.cache_bytes + BASE_BYTES
    assert needed <= MEMORY_WARN_SHARE * limit_of(name)


@pytest.mark.parametrize("name", sorted(configurations()))
def test_every_daemon_may_drain_before_it_is_killed(name: str, tmp_path: Path) -> None:
    """Whoever stops it waits longer than shutdown.drain_s."""
    unit = (DEPLOY / "systemd" / "offloaderd.service").read_text()
    patience_s = {
        "compose/offloaderd.toml": int(COMPOSE["services"]["offloaderd-0"]["stop_grace_period"].removesuffix("s")),
        "systemd/offloaderd.toml": int(re.findall(r"(?m)^TimeoutStopSec=(\d+)$", unit)[0]),
    } | {file: pod["terminationGracePeriodSeconds"] for file, pod, _ in pods()}
    assert settings_of(name, tmp_path).shutdown.drain_s + 5 <= patience_s[name]


@pytest.mark.parametrize("version", SCHEMAS)
def test_manifests_are_what_kubernetes_takes(version: str) -> None:
    """Strict: a field that is misspelt is an error."""
    found = documents()
    assert {document["kind"] for _, document in found} >= {"StatefulSet", "PodDisruptionBudget", "NetworkPolicy"}
    for _, document in found:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelt_field_of_a_manifest_is_found() -> None:
    """The check above can fail."""
    (document,) = [one for name, one in documents() if one["kind"] == "PodDisruptionBudget"]
    document["spec"]["maxUnavailible"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, SCHEMAS[-1], strict=True)


def test_pods_are_confined_and_probed() -> None:
    """Not root, nothing writable, no privileges; alive by /healthz; memory that is requested is memory that is had."""
    found = list(pods())
    assert len(found) == 2
    for name, pod, container in found:
        security = pod.get("securityContext", {}) | container["securityContext"]
        assert security["runAsNonRoot"], name
        assert security["runAsUser"] == 10001
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert container["image"] == IMAGE
        assert {port["containerPort"] for port in container["ports"]} == PORTS
        resources = container["resources"]
        assert resources["requests"]["memory"] == resources["limits"]["memory"]
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts <= {volume["name"] for volume in pod["volumes"]}
    daemons, *_ = [container for name, _, container in found if name.startswith("kubernetes/statefulset")]
    assert daemons["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_selectors_and_names_of_the_statefulset_meet() -> None:
    """Service, budget and policy choose the pods; the address that a pod tells others is its own in that service."""
    objects = {one["kind"]: one for name, one in documents() if name.startswith("kubernetes/statefulset")}
    pod = objects["StatefulSet"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert objects["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["Service"]["spec"]["selector"] == labels
    assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert objects["Service"]["metadata"]["name"] == objects["StatefulSet"]["spec"]["serviceName"] == "offloaderd"
    told = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert told["OFFLOADERD__GRPC__ADVERTISE"] == "$(OFFLOADERD__DAEMON__ID).offloaderd.pulsar.svc:7650"
    assert {port["port"] for port in objects["Service"]["spec"]["ports"]} == PORTS


def test_the_compose_file_keeps_the_specification() -> None:
    """Every service, volume and condition is one, and what services refer to is there."""
    specification = {name: value for name, value in COMPOSE.items() if not name.startswith("x-")}
    ComposeSpecification(**specification)
    services = COMPOSE["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= services.keys(), name
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or "healthcheck" in services[other], f"{name} waits for ever"
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], volume
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} is open to the network"


def test_a_wrong_compose_file_is_found() -> None:
    """The check above can fail."""
    service = {"image": "x", "depends_on": {"y": {"condition": "service_is_well"}}}
    with pytest.raises(ValueError, match="service_healthy"):
        ComposeSpecification(services={"x": service, "y": {"image": "y"}})


def test_what_compose_starts_finds_each_other() -> None:
    """Prometheus scrapes the two daemons by name, Grafana asks that Prometheus and has the dashboard, keys are one."""
    services = COMPOSE["services"]
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"][0]
    daemons = {name for name, service in services.items() if service.get("image") == IMAGE} - {"certificates"}
    assert {target.partition(":")[0] for target in scraped["static_configs"][0]["targets"]} == daemons
    assert len(daemons) == 2
    (identity,) = json.loads((DEPLOY / "compose" / "s3.json").read_text())["identities"]
    keys = identity["credentials"][0]
    for name in daemons:
        environment = services[name]["environment"]
        assert environment["OFFLOADERD__OBJECTS__ACCESS_KEY"] == keys["accessKey"]
        assert environment["OFFLOADERD__OBJECTS__SECRET_KEY"] == keys["secretKey"]
        assert environment["OFFLOADERD__DAEMON__ID"] == name
        assert environment["OFFLOADERD__GRPC__ADVERTISE"] == f"{name}:7650"
    provisioning = DEPLOY / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    folder = yaml.safe_load((provisioning / "dashboards" / "offloaderd.yml").read_text())["providers"][0]
    assert services["grafana"]["volumes"][1].split(":")[1].startswith(folder["options"]["path"])


def test_systemd_restarts_what_a_restart_may_mend() -> None:
    """Not a mistake in the settings, which the main process alone tells it by its exit code; but a loop that hangs."""
    unit = dict(re.findall(r"(?m)^(\w+)=(.*)$", (DEPLOY / "systemd" / "offloaderd.service").read_text()))
    assert "ExecStartPre" not in unit
    assert (unit["Restart"], unit["RestartPreventExitStatus"]) == ("on-failure", str(USAGE))
    assert (unit["Type"], int(unit["WatchdogSec"])) == ("notify", 60)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
def test_the_unit_is_sound_and_confined(tmp_path: Path) -> None:
    """systemd-analyze finds no mistake in it, and rates its exposure 2.5 or less of 10."""
    unit = (DEPLOY / "systemd" / "offloaderd.service").read_text()
    assert unit.count("/opt/offloaderd/bin/offloaderd ") == 2
    copy = tmp_path / "offloaderd.service"
    copy.write_text(unit.replace("/opt/offloaderd/bin/offloaderd ", f"{program('offloaderd')} "))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],  # noqa: S607 - whichever there is
        check=False,
        capture_output=True,
        text=True,
    )
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(copy)],  # noqa: S607 - the same
        check=False,
        capture_output=True,
        text=True,
    )
    assert rated.returncode == 0, rated.stdout
