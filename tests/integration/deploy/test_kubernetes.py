"""What deploy/ has for Kubernetes, before a real API server: it is taken as it is, changed, taken back and removed.

Helm acts for a user who may do something in one namespace alone, and what it installs there has to keep the strictest
standard for pods. Nothing runs: there are no nodes. Where the server was not built, these tests are skipped.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import yaml

from offloaderd import __version__
from offloaderd.core.clock import SystemClock
from tests.authority import Authority
from tests.kubernetes.control_plane import INSTALLER, KINDS, STRICTLY, ControlPlane, Refused, control_plane, lacking
from tests.pages import blocks
from tests.servers import running
from tests.unit.deploy.test_chart import EVERYTHING
from tools.chart import BUILT, CHART, KUBERNETES, ROOT, SIDECAR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RELEASE = "offloaderd"
STRICT = {f"pod-security.kubernetes.io/{what}": "restricted" for what in ("enforce", "warn")}
"""Labels of a namespace: pods that are not confined are refused, and what would make such pods is warned of."""
RIGHTS = (
    ("", ["configmaps", "secrets", "services", "serviceaccounts"]),
    ("apps", ["statefulsets"]),
    ("networking.k8s.io", ["networkpolicies"]),
    ("policy", ["poddisruptionbudgets"]),
    ("cert-manager.io", ["certificates"]),
    ("monitoring.coreos.com", ["servicemonitors", "prometheusrules"]),
)
"""All that Helm needs to install the chart with all that it can make; its own records of releases are secrets."""
DAEMONS = {
    "configmap/offloaderd",
    "configmap/offloaderd-dashboard",
    "service/offloaderd",
    "certificate.cert-manager.io/offloaderd-operator",
    "certificate.cert-manager.io/offloaderd-tls",
    "networkpolicy.networking.k8s.io/offloaderd",
    "prometheusrule.monitoring.coreos.com/offloaderd",
    "servicemonitor.monitoring.coreos.com/offloaderd",
    "poddisruptionbudget.policy/offloaderd",
    "serviceaccount/offloaderd",
    "statefulset.apps/offloaderd",
}
OF_DAEMONS = {"poddisruptionbudget.policy/offloaderd", "serviceaccount/offloaderd", "statefulset.apps/offloaderd"}
BESIDE_BROKERS = (DAEMONS - OF_DAEMONS) | {"certificate.cert-manager.io/offloaderd-broker"}


class Mode(NamedTuple):
    """A mode of the chart: its arguments, and what is installed with everything."""

    arguments: tuple[str, ...]
    installed: set[str]


modes = pytest.mark.parametrize("mode", [Mode((), DAEMONS), Mode(SIDECAR, BESIDE_BROKERS)], ids=["daemons", "sidecar"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running API server that knows the kinds of other operators."""
    if reason := lacking():
        pytest.skip(reason)
    with running(control_plane(tmp_path_factory.mktemp("kubernetes"), SystemClock())) as found:
        for name in KINDS:
            found.kubectl("create", f"--filename={BUILT / 'kinds' / name}")
        found.kubectl("wait", "--for=condition=Established", "crd", "--all")
        found.apply(
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
        )
        yield found


@pytest.fixture
def place(server: ControlPlane) -> str:
    """A new namespace, where pods have to be confined, and Helm's user may do what a release needs."""
    name = f"test-{SystemClock().uuid().hex}"
    make_place(server, name)
    return name


def make_place(server: ControlPlane, name: str) -> None:
    """Make a namespace as `place` says."""
    rules = [{"apiGroups": [group], "resources": kinds, "verbs": ["*"]} for group, kinds in RIGHTS]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": INSTALLER}
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": INSTALLER}
    metadata = {"name": INSTALLER, "namespace": name}
    rbac = "rbac.authorization.k8s.io/v1"
    server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": STRICT}})
    server.apply({"apiVersion": rbac, "kind": "Role", "metadata": metadata, "rules": rules})
    server.apply({"apiVersion": rbac, "kind": "RoleBinding", "metadata": metadata, "roleRef": role, "subjects": [user]})


def left(server: ControlPlane, namespace: str) -> set[str]:
    """What a namespace has besides the rights that the tests gave, and Helm's own record."""
    ours = {f"role.rbac.authorization.k8s.io/{INSTALLER}", f"rolebinding.rbac.authorization.k8s.io/{INSTALLER}"}
    return {name for name in server.names(namespace) - ours if not name.startswith("secret/sh.helm.release.")}


def refused(call: Callable[[], object]) -> str:
    """What is said of what is refused."""
    with pytest.raises(Refused) as error:
        call()
    return str(error.value)


@modes
def test_a_release_is_installed_changed_taken_back_and_removed(server: ControlPlane, place: str, mode: Mode) -> None:
    """The server warns of nothing, knows every field, and keeps nothing in the end."""
    helm = ("--namespace", place)
    assert server.helm("install", RELEASE, str(CHART), *helm, *mode.arguments, *EVERYTHING).warnings == []
    assert left(server, place) == mode.installed
    manifest = list(yaml.safe_load_all(server.helm("get", "manifest", RELEASE, *helm).out))
    assert len(manifest) == len(mode.installed)
    for one in manifest:
        server.apply(one, "--dry-run=server", "--force-conflicts", "--namespace", place)
    before = {name: server.get(place, name) for name in mode.installed}

    changes = "config.log.level=debug,networkPolicy.enabled=false,replicas=3,resources.limits.cpu=2"
    server.helm("upgrade", RELEASE, str(CHART), *helm, *mode.arguments, *EVERYTHING, "--set", changes)
    assert mode.installed - left(server, place) == {"networkpolicy.networking.k8s.io/offloaderd"}
    assert 'level = "debug"' in server.get(place, "configmap/offloaderd")["data"]["offloaderd.toml"]
    if (name := "statefulset.apps/offloaderd") in mode.installed:
        spec = server.get(place, name)["spec"]
        assert spec["replicas"] == 3
        assert spec["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "2"

    server.helm("rollback", RELEASE, "1", *helm)
    for name, one in before.items():
        now = server.get(place, name)
        assert {key: now.get(key) for key in ("spec", "data")} == {key: one.get(key) for key in ("spec", "data")}

    server.helm("uninstall", RELEASE, *helm)
    assert left(server, place) == set()
    assert not {name for name in server.names(place) if name.startswith("secret/")}


@modes
def test_a_new_version_of_the_chart_changes_nothing_that_may_not_change(
    server: ControlPlane, place: str, mode: Mode, tmp_path: Path
) -> None:
    """Selectors and names of what is there know nothing of versions; the pods get the new image."""
    newer = shutil.copytree(CHART, tmp_path / "chart") / "Chart.yaml"
    newer.write_text(newer.read_text().replace(f"ersion: {__version__}", "ersion: 9.9.9"))
    arguments = ("--namespace", place, *mode.arguments, *EVERYTHING)
    server.helm("install", RELEASE, str(CHART), *arguments)
    assert server.helm("upgrade", RELEASE, str(newer.parent), *arguments).warnings == []
    assert left(server, place) == mode.installed
    found = [server.get(place, name) for name in mode.installed]
    assert {one["metadata"]["labels"]["app.kubernetes.io/version"] for one in found} == {"9.9.9"}
    images = [
        one["spec"]["template"]["spec"]["containers"][0]["image"] for one in found if one["kind"] == "StatefulSet"
    ]
    assert images == ["offloaderd:9.9.9"] * len(images)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("mode=both", "at '/mode': value must be one of"),
        ("replicas=-1", "spec.replicas: Invalid value"),
        ("resources.requests.memory=lots", "quantities must match"),
        ("resources.requests.memory=2Gi", "must be less than or equal to memory limit"),
        ("networkPolicy.egress.pulsarPorts={70000}", "must be between 1 and 65535"),
        ("nodeSelector.disk/of/kind=fast", "spec.template.spec.nodeSelector"),
        ("serviceMonitor.interval=often", "spec.endpoints[0].interval"),
        ("certManager.issuerRef.name=null", "spec.issuerRef.name"),
        ("certManager.issuerRef.grop=x", "spec.issuerRef.grop: field not declared"),
    ],
)
def test_wrong_values_are_refused(server: ControlPlane, place: str, given: str, reason: str) -> None:
    """What the chart's schema lets through, the server's own checks do not; either names the place."""
    said = refused(lambda: install_strictly(server, place, *EVERYTHING, f"--set={given}"))
    assert reason in said


def install_strictly(server: ControlPlane, place: str, *arguments: str) -> None:
    """Have the server check what Helm renders, as `helm install` does, and refuse fields that it does not know."""
    rendered = server.helm("template", RELEASE, str(CHART), "--namespace", place, KUBERNETES, *arguments).out
    for one in yaml.safe_load_all(rendered):
        server.apply(one, "--dry-run=server")


def pod(server: ControlPlane, place: str) -> dict[str, Any]:
    """The first pod of the installed StatefulSet, as its controller would make it."""
    template = server.get(place, f"statefulset.apps/{RELEASE}")["spec"]["template"]
    metadata = {**template["metadata"], "name": f"{RELEASE}-0", "namespace": place}
    metadata.pop("creationTimestamp", None)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def test_pods_are_admitted_where_the_strictest_standard_holds(server: ControlPlane, place: str) -> None:
    """With their account and priority; without what confines them, or with an unknown priority, they are refused."""
    server.helm("install", RELEASE, str(CHART), "--namespace", place, *EVERYTHING)
    good = pod(server, place)
    server.apply(good)
    admitted = server.get(place, f"pod/{RELEASE}-0")["spec"]
    assert admitted["priority"] == 1000
    assert admitted["serviceAccountName"] == RELEASE
    assert {one["name"] for one in admitted["volumes"]} == {one["name"] for one in good["spec"]["volumes"]}, "no token"

    container = good["spec"]["containers"][0]
    privileged = {**container, "securityContext": {**container["securityContext"], "runAsNonRoot": False}}
    good["metadata"]["name"] = f"{RELEASE}-1"
    assert "runAsNonRoot" in refused(
        lambda: server.apply({**good, "spec": {**good["spec"], "containers": [privileged]}})
    )
    unknown = {**good["spec"], "priorityClassName": "higher"}
    assert "no PriorityClass with name higher" in refused(lambda: server.apply({**good, "spec": unknown}))


def test_a_broker_with_the_printed_values_is_admitted(server: ControlPlane, place: str) -> None:
    """A pod as the Pulsar chart makes it of them, beside a confined broker: its files can be read by the daemon."""
    printed = server.helm(
        "template",
        RELEASE,
        str(CHART),
        "--namespace",
        place,
        KUBERNETES,
        *SIDECAR,
        "--set=printPulsarValues=true,priorityClassName=high",
        "--show-only=templates/pulsar-values.yaml",
    ).out
    values = yaml.safe_load(printed)["broker"]
    confined = {
        name: values["initContainers"][0]["securityContext"][name]
        for name in ("runAsNonRoot", "allowPrivilegeEscalation", "capabilities", "seccompProfile")
    }
    broker = {
        "name": "broker",
        "image": "apachepulsar/pulsar",
        "volumeMounts": values["extraVolumeMounts"],
        "securityContext": confined,
    }
    spec = {
        "serviceAccountName": "brokers",
        "automountServiceAccountToken": False,
        "priorityClassName": values["priorityClassName"],
        "terminationGracePeriodSeconds": values["gracePeriod"],
        "initContainers": values["initContainers"],
        "containers": [broker],
        "volumes": values["extraVolumes"],
    }
    server.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "brokers", "namespace": place}})
    server.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "broker-0", "namespace": place}, "spec": spec}
    )
    admitted = server.get(place, "pod/broker-0")["spec"]
    assert [one["restartPolicy"] for one in admitted["initContainers"]] == ["Always"]
    bits = {one["name"]: one["secret"]["defaultMode"] for one in admitted["volumes"] if "secret" in one}
    assert bits == dict.fromkeys(("offloaderd-tls", "offloaderd-operator", "offloaderd-broker"), 0o444)


def test_a_warning_of_the_server_is_seen(server: ControlPlane, place: str) -> None:
    """The checks above can fail: a variable that is set twice is one that it warns of."""
    twice = "--set=env[0].name=OFFLOADERD__METADATA__ACL,env[0].value=open"
    (warning,) = server.helm("install", RELEASE, str(CHART), "--namespace", place, twice).warnings
    assert "hides previous definition" in warning


def test_the_bases_are_applied_and_deleted(server: ControlPlane) -> None:
    """`kubectl apply -k` makes each object, finds nothing to change again, and `delete -k` leaves nothing."""
    make_place(server, "pulsar")
    for base in ("statefulset", "sidecar"):
        folder = str(ROOT / "deploy" / "kubernetes" / base)
        made = server.kubectl("apply", "-k", folder, *STRICTLY)
        assert made.out.count("serverside-applied") == len(left(server, "pulsar")) > 0
        versions = {name: server.get("pulsar", name)["metadata"]["resourceVersion"] for name in left(server, "pulsar")}
        server.kubectl("apply", "-k", folder, *STRICTLY)
        assert versions == {name: server.get("pulsar", name)["metadata"]["resourceVersion"] for name in versions}
        server.kubectl("delete", "-k", folder)
        assert left(server, "pulsar") == set()


def test_the_example_of_secrets_is_taken_once_it_is_filled_in(server: ControlPlane, place: str, tmp_path: Path) -> None:
    """The server looks into those with certificates: a placeholder is one that it warns of."""
    pair = Authority(tmp_path).issue("offloaderd", "localhost")
    filled = {"tls.crt": pair.cert.read_text(), "tls.key": pair.key.read_text()}
    for one in yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "secret.example.yaml").read_text()):
        one["metadata"]["namespace"] = place
        if one["type"] == "kubernetes.io/tls":
            assert "failed to find any PEM data" in refused(partial(server.apply, one))
            one["stringData"] |= filled
        server.apply(one)
    assert len(left(server, place)) == 5


def test_commands_of_the_page_are_taken(server: ControlPlane, tmp_path: Path) -> None:
    """Each call of Helm in docs/deploy.md, but the one that needs the chart of Pulsar."""
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    page = [block for block in blocks(ROOT / "docs" / "deploy.md") if block.info == ("sh", "kubernetes")]
    lines = [line for block in page for line in block.text.replace("\\\n", " ").splitlines()]
    calls = [line for line in lines if line.startswith("helm ") and " apachepulsar/pulsar " not in line]
    assert [line.split()[1] for line in calls] == ["install", "install", "template"]
    for number, line in enumerate(calls):
        make_place(server, f"page-{number}")
        here = line.replace("--namespace pulsar", f"--namespace page-{number}")
        server.shell(here.replace("helm template", f"helm template {KUBERNETES}"), tmp_path)
    assert "initContainers" in yaml.safe_load((tmp_path / "pulsar-values.yaml").read_text())["broker"]
