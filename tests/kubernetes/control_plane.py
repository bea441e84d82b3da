"""A control plane of Kubernetes on loopback: etcd, and the API server that keeps its objects there.

Both are built from their Go modules by `make kubernetes`, so a machine without Go does without them. There are no
controllers, no scheduler and no nodes: the server checks, completes, stores and lists objects, and nothing follows from
them. It knows the kinds of cert-manager and of the operator of Prometheus by schemas that are made of their Go types.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp

from offloaderd.standalone.ports import LOOPBACK, free_ports, http_get
from offloaderd.standalone.process import ChildProcess, Command
from tests.authority import Authority
from tests.patience import PATIENCE_S
from tools.chart import BUILT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from offloaderd.core.clock import Clock

PROGRAMS = ("etcd", "kube-apiserver", "kubectl", "helm")
KINDS = (
    "cert-manager.io_certificates.yaml",
    "monitoring.coreos.com_servicemonitors.yaml",
    "monitoring.coreos.com_prometheusrules.yaml",
)
"""Definitions of the kinds of other operators that the chart has objects of."""
OPERATOR, INSTALLER = "operator", "installer"
"""Users: one who may do everything, and one who may do what tests grant."""


STRICTLY = ("--server-side", "--validate=strict", "--warnings-as-errors")
"""Arguments of `kubectl apply` by which a field that the server does not know, and a warning of it, are errors."""
_OF_HELM = "found symbolic link in path"
"""What Helm says of files of the chart that are links into deploy/."""


class Refused(Exception):
    """A program ended with an error; the message is what it wrote of it."""


class Said(NamedTuple):
    """What a program wrote, and of that the warnings."""

    out: str
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running API server; `directory` has a configuration of its clients for each user."""

    directory: Path

    def kubectl(self, *arguments: str, given: object = None) -> Said:
        """Run kubectl as the operator, with an object as its input if one is given. Raises Refused."""
        return self._run(OPERATOR, "kubectl", *arguments, given=json.dumps(given))

    def helm(self, *arguments: str) -> Said:
        """Run Helm as the installer. Raises Refused."""
        return self._run(INSTALLER, "helm", *arguments)

    def shell(self, line: str, place: Path) -> Said:
        """Run a line of shell as the installer in a directory. Raises Refused."""
        return self._run(INSTALLER, "sh", "-c", line, place=place)

    def _run(self, user: str, *command: str, given: str = "", place: Path | None = None) -> Said:
        environment = {
            **os.environ,
            "PATH": f"{BUILT}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.directory),
            "KUBECONFIG": str(self.directory / user),
        }
        done = subprocess.run(
            command, env=environment, cwd=place, input=given, check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise Refused(f"{' '.join(command)}: {done.stderr}")
        return Said(done.stdout, [line for line in done.stderr.splitlines() if _OF_HELM not in line])

    def apply(self, given: object, *arguments: str) -> Said:
        """Have the server take an object, without an unknown field or a warning. Raises Refused."""
        return self.kubectl("apply", *STRICTLY, *arguments, "-f-", given=given)

    def get(self, namespace: str, name: str) -> dict[str, Any]:
        """Return an object by `kind/name`. Raises Refused for none."""
        found: dict[str, Any] = json.loads(self.kubectl("get", "--namespace", namespace, "--output=json", name).out)
        return found

    def names(self, namespace: str) -> set[str]:
        """Return `kind.group/name` of everything that a namespace has."""
        kinds = self.kubectl("api-resources", "--namespaced", "--verbs=list", "--output=name").out.split()
        return set(self.kubectl("get", "--namespace", namespace, "--output=name", ",".join(kinds)).out.split())


def lacking() -> str:
    """Return why there can be no control plane; empty if there can."""
    missing = [name for name in (*PROGRAMS, *(f"kinds/{name}" for name in KINDS)) if not (BUILT / name).exists()]
    return f"no {', '.join(missing)} in build/kubernetes: `make kubernetes` builds them (needs Go)" if missing else ""


@asynccontextmanager
async def control_plane(directory: Path, clock: Clock) -> AsyncIterator[ControlPlane]:
    """Run etcd and an API server, which are not lacking. Raises ServerDied when one does not come up."""
    etcd_port, peer_port, port = free_ports(3, clock)
    authority = Authority(directory)
    pair, accounts = authority.issue("kube-apiserver", LOOPBACK), authority.issue("accounts")
    tokens = {user: clock.uuid().hex for user in (OPERATOR, INSTALLER)}
    (directory / "tokens").write_text(
        f"{tokens[OPERATOR]},{OPERATOR},1,system:masters\n{tokens[INSTALLER]},{INSTALLER},2\n"
    )
    for user, token in tokens.items():
        (directory / user).write_text(json.dumps(_client(port, authority.file, user, token)))
    etcd = _command(
        "etcd",
        directory,
        {
            "data-dir": directory / "etcd",
            "listen-client-urls": f"http://{LOOPBACK}:{etcd_port}",
            "advertise-client-urls": f"http://{LOOPBACK}:{etcd_port}",
            "listen-peer-urls": f"http://{LOOPBACK}:{peer_port}",
            "initial-advertise-peer-urls": f"http://{LOOPBACK}:{peer_port}",
            "initial-cluster": f"default=http://{LOOPBACK}:{peer_port}",
            "unsafe-no-fsync": "true",
        },
    )
    server = _command(
        "kube-apiserver",
        directory,
        {
            "etcd-servers": f"http://{LOOPBACK}:{etcd_port}",
            "bind-address": LOOPBACK,
            "secure-port": port,
            "tls-cert-file": pair.cert,
            "tls-private-key-file": pair.key,
            "token-auth-file": directory / "tokens",
            "authorization-mode": "RBAC",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": accounts.key,
            "service-account-signing-key-file": accounts.key,
            "service-cluster-ip-range": "10.0.0.0/24",
            "endpoint-reconciler-type": "none",
        },
    )
    trust = ssl.create_default_context(cafile=str(authority.file))
    async with ChildProcess(etcd, clock) as store, ChildProcess(server, clock) as child:

        async def stores() -> bool:
            return (await http_get(etcd_port, "/readyz"))[0] == 200

        async def answers() -> bool:
            try:
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"https://{LOOPBACK}:{port}/readyz", ssl=trust) as got,
                ):
                    return got.status == 200
            except aiohttp.ClientError:
                return False

        await store.ready(stores, PATIENCE_S)
        await child.ready(answers, PATIENCE_S)
        yield ControlPlane(directory)


def _command(name: str, directory: Path, options: dict[str, object]) -> Command:
    arguments = tuple(f"--{option}={value}" for option, value in options.items())
    return Command(name=name, program=BUILT / name, arguments=arguments, directory=directory)


def _client(port: int, authority: Path, user: str, token: str) -> dict[str, object]:
    """Return the configuration of a client."""
    server = {"server": f"https://{LOOPBACK}:{port}", "certificate-authority": str(authority)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": server}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
        "current-context": "tests",
    }
