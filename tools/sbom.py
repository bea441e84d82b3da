"""Bills of materials (CycloneDX 1.6) of what an installation by a lock of requirements/ contains."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"
_PIN = re.compile(r"(?m)^([\w.-]+)==(\S+) \\\n(?:\s+--hash=\S+(?: \\)?\n)+((?:\s+#.*\n?)*)")
_VIA = re.compile(r"#\s+(?:via\s+)?([\w.-]+)(?:\[[\w,-]+\])?(?: \(pyproject\.toml\))?\s*$", re.MULTILINE)


def bill(name: str, version: str, lock: Path, made: str) -> dict[str, object]:
    """Return the bill of an installation of this project by a lock; `made` is its time in ISO 8601.

    The same lock gives the same bill. Licences are those that the packages of this environment state.
    """
    text = lock.read_text(encoding="utf-8")
    pins = {found[0]: (found[1], set(_VIA.findall(found[2]))) for found in _PIN.findall(text)}
    purls = {one: f"pkg:pypi/{one}@{pinned}" for one, (pinned, _) in pins.items()}
    root = f"pkg:pypi/{name}@{version}"
    needed_by = {purls[one]: via for one, (_, via) in pins.items()}
    dependencies = [
        {"ref": ref, "dependsOn": sorted(purl for purl, via in needed_by.items() if one in via)}
        for one, ref in {name: root, **purls}.items()
    ]
    subject = {"type": "application", "bom-ref": root, "name": name, "version": version, "purl": root}
    return {
        "$schema": SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, f'{root}#{lock.stem}#{text}')}",
        "version": 1,
        "metadata": {"timestamp": made, "component": {**subject, "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": [
            {
                "type": "library",
                "bom-ref": purls[one],
                "name": one,
                "version": pinned,
                "purl": purls[one],
                "licenses": licences(one, pinned),
            }
            for one, (pinned, _) in pins.items()
        ],
        "dependencies": dependencies,
    }


def licences(name: str, version: str) -> list[dict[str, object]]:
    """Return the licences that an installed package states, as CycloneDX has them; none where it is not installed."""
    try:
        stated = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return []
    if stated["Version"] != version:
        return []
    if expressions := stated.get_all("License-Expression"):
        return [{"expression": expressions[0]}]
    classes = [one.rpartition(" :: ")[2] for one in stated.get_all("Classifier") or [] if one.startswith("License ::")]
    short = [text.strip() for text in stated.get_all("License") or [] if "\n" not in text.strip()]
    return [{"license": {"name": one}} for one in classes or short]
