"""The Helm chart: the schema of its values, and the manifests of deploy/kubernetes, which are what it renders.

`make manifests` writes the manifests with the real Helm. The schema follows from the chart's values and the settings.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from offloaderd.daemon.settings.sections import all_settings

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "offloaderd"
BUILT = ROOT / "build" / "kubernetes"
SIDECAR = ("--values", str(CHART / "sidecar.yaml"))
RENDERED = {
    "deploy/kubernetes/statefulset/offloaderd.yaml": (),
    "deploy/kubernetes/sidecar/offloaderd.yaml": SIDECAR,
    "deploy/kubernetes/sidecar/pulsar-values.yaml": (
        *SIDECAR,
        "--set=printPulsarValues=true",
        "--show-only=templates/pulsar-values.yaml",
    ),
}
"""The files below the project's root, each with the arguments of Helm."""
KUBERNETES = "--kube-version=1.37"
"""What is rendered for: a Helm that was built from its module alone takes itself for one of Kubernetes 1.20."""
FREE = {"resources", "selector", "issuerRef", "labels"}
"""Values that are Kubernetes' or the user's own; and every empty map."""
CHOICES = {"mode": ["daemons", "sidecar"], "pullPolicy": ["Always", "IfNotPresent", "Never"]}
KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


class NotBuilt(Exception):
    """A program is not there; the message says what to do."""


def program(name: str) -> str:
    """Return the path of Helm or kubectl: what `make` built, else that of the PATH. Raises NotBuilt."""
    found = str(BUILT / name) if (BUILT / name).exists() else shutil.which(name)
    if found is None:
        raise NotBuilt(f"no {name} in build/kubernetes and none on the PATH: `make kubernetes` builds it (needs Go)")
    return found


def rendered(*arguments: str) -> str:
    """Return what the chart renders in the namespace pulsar. Raises CalledProcessError, NotBuilt."""
    command = [program("helm"), "template", "offloaderd", str(CHART), "--namespace", "pulsar", KUBERNETES, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    # Who applies the manifests without Helm is not to read that Helm manages them.
    lines = [line for line in done.stdout.splitlines() if line.strip() != "app.kubernetes.io/managed-by: Helm"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def manifest(name: str) -> str:
    """Return a file of RENDERED. Raises as `rendered`."""
    return f"# Rendered from deploy/helm/offloaderd by `make manifests`.\n{rendered(*RENDERED[name])}"


def values_schema() -> str:
    """Return the JSON schema of the chart's values, by which Helm refuses a misspelt value or setting."""
    schema = _schema(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")))
    sections: dict[str, Any] = {}
    for setting in all_settings():
        sections.setdefault(setting.section, {})[setting.name] = {"description": setting.description}
    sections["objects"]["services"] = {"type": "object"}
    schema["properties"]["config"] = _object({name: _object(values) for name, values in sections.items()})
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **schema}, indent=1) + "\n"


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _schema(value: Any, name: str = "") -> dict[str, Any]:  # noqa: ANN401 - whatever YAML holds
    if name in CHOICES:
        return {"enum": CHOICES[name]}
    if not isinstance(value, dict):
        return {"type": "number" if "_" in name else KINDS[type(value)]}  # those of the site's rules
    if not value or name in FREE:
        return {"type": "object"}
    return _object({key: _schema(one, key) for key, one in value.items()})


def main() -> None:
    """Write the manifests."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    try:
        for name in RENDERED:
            (ROOT / name).write_text(manifest(name), encoding="utf-8")
    except NotBuilt as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
