"""The Helm chart: its values, what the real Helm makes of them, and the manifests that are rendered from it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped] # it has no types
import kubernetes_validate
import pytest
import yaml

from offloaderd import __version__
from offloaderd.daemon.settings import load
from tests.unit.deploy.expressions import PROMETHEUS
from tests.unit.deploy.test_manifests import PORTS, SCHEMAS
from tools.chart import CHART, KUBERNETES, RENDERED, ROOT, SIDECAR, NotBuilt, manifest, program, rendered, values_schema

EVERYTHING = (
    "--set=certManager.enabled=true,serviceMonitor.enabled=true,prometheusRule.enabled=true,grafanaDashboard.enabled=true",
    "--set=networkPolicy.enabled=true,priorityClassName=high",
    "--set=prometheusRule.runbooks=https://wiki.example/docs/alerts.html",
)
OPERATORS = {"Certificate", "ServiceMonitor", "PrometheusRule"}
"""Kinds of other operators, for which there is no schema here."""


def built(name: str) -> str:
    """The path of a program; without one the test is left out."""
    try:
        return program(name)
    except NotBuilt as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def _helm() -> None:
    built("helm")


with_helm = pytest.mark.usefixtures("_helm")
both = pytest.mark.parametrize("profile", [(), SIDECAR], ids=["daemons", "sidecar"])


def values(name: str) -> dict[str, Any]:
    """Read a file of values of the chart."""
    found: dict[str, Any] = yaml.safe_load((CHART / name).read_text())
    return found


def objects(*arguments: str) -> dict[str, dict[str, Any]]:
    """What the chart renders, by `kind name`."""
    found = [one for one in yaml.safe_load_all(rendered(*arguments)) if one]
    named = {f"{one['kind']} {one['metadata']['name']}": one for one in found}
    assert len(named) == len(found)
    return named


def refused(*arguments: str) -> str:
    """What Helm says of values that it refuses."""
    with pytest.raises(subprocess.CalledProcessError) as error:
        rendered(*arguments)
    return str(error.value.stderr)


def test_the_chart_has_the_version_of_the_package() -> None:
    """And so has the image that it names."""
    chart = values("Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@pytest.mark.parametrize("name", ["values.yaml", "sidecar.yaml"])
def test_values_fit_their_schema(name: str) -> None:
    """Those that come with the chart do; a misspelt setting does not."""
    schema = yaml.safe_load(values_schema())
    given = values(name)
    jsonschema.validate(given, schema)
    given["config"]["memory"]["bufer_bytes"] = "1GiB"
    with pytest.raises(jsonschema.ValidationError, match="bufer_bytes"):
        jsonschema.validate(given, schema)


@with_helm
@both
def test_helm_finds_nothing_to_complain_of(profile: tuple[str, ...]) -> None:
    """`helm lint --strict`, with everything switched on."""
    command = [program("helm"), "lint", "--strict", str(CHART), KUBERNETES, *profile, *EVERYTHING]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@with_helm
@pytest.mark.parametrize("name", RENDERED)
def test_manifests_are_what_the_chart_renders(name: str) -> None:
    """Who changes the chart runs `make manifests`."""
    kept, now = (list(yaml.safe_load_all(text)) for text in ((ROOT / name).read_text(), manifest(name)))
    by_name = [{f"{one.get('kind')}": one for one in found if one} for found in (kept, now)]
    assert by_name[0] == by_name[1]


@with_helm
@pytest.mark.parametrize(
    "given", ["mode=both", "replica=3", "config.objects.bukket=x", "networkPolicy.egress.enabled=perhaps"]
)
def test_wrong_values_are_refused_before_anything_is_installed(given: str) -> None:
    """The message names the value."""
    assert given.partition("=")[0].rpartition(".")[2] in refused(f"--set={given}")


@with_helm
def test_values_for_brokers_are_for_sidecars_alone() -> None:
    """Daemons of their own have no container for anybody else's pods."""
    assert "needs mode=sidecar" in refused("--set=printPulsarValues=true")


@with_helm
@both
@pytest.mark.parametrize("version", SCHEMAS)
def test_what_is_rendered_is_what_kubernetes_takes(profile: tuple[str, ...], version: str) -> None:
    """Strictly, with all parts that can be switched on."""
    for one in objects(*profile, *EVERYTHING).values():
        if one["kind"] not in OPERATORS:
            kubernetes_validate.validate(one, version, strict=True)


@with_helm
def test_settings_become_a_file_that_the_daemon_takes(tmp_path: Path) -> None:
    """Texts, numbers, lists and a further service arrive as they were given."""
    given = tmp_path / "values.yaml"
    service = {"kind": "azure", "bucket": "archive", "azure_account": "a"}
    levels = ["offloaderd.segment debug"]
    config = {"objects": {"services": {"archive": service}}, "log": {"levels": levels}, "shutdown": {"drain_s": 12.5}}
    given.write_text(yaml.safe_dump({"config": config}))
    path = tmp_path / "offloaderd.toml"
    path.write_text(objects(f"--values={given}")["ConfigMap offloaderd"]["data"]["offloaderd.toml"])
    settings = load(path, {})
    assert settings.objects.services["archive"].azure_account == "a"
    assert list(settings.log.levels) == levels
    assert settings.shutdown.drain_s == 12.5
    assert settings.metadata.servers.count(",") == 2


@with_helm
def test_the_operator_of_prometheus_gets_the_same_rules() -> None:
    """Every group of deploy/prometheus, the site's numbers from the values, runbooks where they are kept."""
    rule = objects(*EVERYTHING)["PrometheusRule offloaderd"]
    site, *groups = rule["spec"]["groups"]
    files = {
        name: yaml.safe_load((PROMETHEUS / f"{name}.rules.yml").read_text())["groups"]
        for name in ("recording", "alerts")
    }
    for group in files["alerts"]:
        for one in group["rules"]:
            notes = one["annotations"]
            notes["runbook_url"] = notes["runbook_url"].replace(
                "docs/alerts.md", "https://wiki.example/docs/alerts.html"
            )
    assert groups == [*files["recording"], *files["alerts"]]
    (known,) = yaml.safe_load((PROMETHEUS / "site.rules.yml").read_text())["groups"]
    assert {one["record"] for one in site["rules"]} == {one["record"] for one in known["rules"]}


@with_helm
@both
def test_a_monitor_finds_the_daemons_under_the_job_that_the_rules_know(profile: tuple[str, ...]) -> None:
    """It chooses the Service, whose label is the job, and a port of it; the policy lets that port be scraped."""
    found = objects(*profile, *EVERYTHING)
    monitor, service = found["ServiceMonitor offloaderd"]["spec"], found["Service offloaderd"]
    labels = service["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["jobLabel"]] == "offloaderd"
    (endpoint,) = monitor["endpoints"]
    assert endpoint["honorLabels"], "the operator's label `namespace` would replace that of quotas"
    (port,) = [port["port"] for port in service["spec"]["ports"] if port["name"] == endpoint["port"]]
    assert {port["targetPort"] for port in service["spec"]["ports"]} == PORTS
    ingress = found["NetworkPolicy offloaderd"]["spec"]["ingress"]
    assert [rule["from"][0] for rule in ingress if rule["ports"] == [{"protocol": "TCP", "port": port}]] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ]


@with_helm
@both
def test_certificates_are_for_the_names_that_are_used(profile: tuple[str, ...]) -> None:
    """The daemons' is for the address that others are given; each client's has a grant, and the daemons' has none."""
    found = objects(*profile, *EVERYTHING)
    certificates = {one["spec"]["commonName"]: one["spec"] for one in found.values() if one["kind"] == "Certificate"}
    ours = certificates.pop("offloaderd")
    values_or_pod = rendered(*profile, *(["--set=printPulsarValues=true"] if profile else []))
    assert f"$(OFFLOADERD__DAEMON__ID).{ours['dnsNames'][0].removeprefix('*.')}:7650" in values_or_pod
    text = found["ConfigMap offloaderd"]["data"]["offloaderd.toml"]
    assert {f"cert:{name} " in text for name in certificates} == {True}
    assert "cert:offloaderd " not in text


@with_helm
def test_a_policy_for_brokers_leaves_them_their_own_ports() -> None:
    """It holds for the whole pod: the broker is still reached, and reaches other brokers and bookies."""
    policy = objects(*SIDECAR, *EVERYTHING)["NetworkPolicy offloaderd"]["spec"]
    assert policy["podSelector"]["matchLabels"] == {"app": "pulsar", "component": "broker"}
    open_to_all = [{port["port"] for port in rule["ports"]} for rule in policy["ingress"] if "from" not in rule]
    assert open_to_all == [{6650, 6651, 8080, 8443}]
    assert {6650, 3181, 2181, 7650} <= {port["port"] for rule in policy["egress"] for port in rule["ports"]}


@with_helm
@both
def test_processes_of_a_pod_are_reached_where_the_daemon_is(profile: tuple[str, ...]) -> None:
    """A client is led to the owner's own port, so each rule that has the common port has theirs; none without them."""

    def own_ports(*more: str) -> list[dict[str, Any]]:
        policy = objects(*profile, *EVERYTHING, *more)["NetworkPolicy offloaderd"]["spec"]
        rules = [rule["ports"] for way in ("ingress", "egress") for rule in policy[way]]
        return [port for ports in rules for port in ports if "endPort" in port]

    assert own_ports() == []
    theirs = {"protocol": "TCP", "port": 7661, "endPort": 7664}
    assert own_ports("--set=config.daemon.processes=4") == [theirs, theirs]
    moved = {"protocol": "TCP", "port": 9001, "endPort": 9002}
    assert own_ports("--set=config.daemon.processes=2,config.grpc.process_port=9000") == [moved, moved]


def test_the_manifests_are_a_base_for_kustomize(tmp_path: Path) -> None:
    """An overlay changes namespace, image and a setting of the pods."""
    shutil.copytree(ROOT / "deploy" / "kubernetes" / "statefulset", tmp_path / "base")
    (tmp_path / "overlay").mkdir()
    overlay = {
        "namespace": "other",
        "resources": ["../base"],
        "images": [{"name": "offloaderd", "newName": "registry.example/offloaderd", "newTag": "1"}],
        "patches": [
            {"target": {"kind": "StatefulSet"}, "patch": '[{"op": "replace", "path": "/spec/replicas", "value": 5}]'}
        ],
    }
    (tmp_path / "overlay" / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    command = [built("kubectl"), "kustomize", str(tmp_path / "overlay")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = list(yaml.safe_load_all(done.stdout))
    assert {one["metadata"]["namespace"] for one in found} == {"other"}
    (daemons,) = [one["spec"] for one in found if one["kind"] == "StatefulSet"]
    assert daemons["replicas"] == 5
    assert daemons["template"]["spec"]["containers"][0]["image"] == "registry.example/offloaderd:1"
