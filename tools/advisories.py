"""A database of advisories in the format of OSV: a folder (pypa/advisory-database) or OSV's archive of an ecosystem."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

Record = Mapping[str, Any]
_MODIFIED = re.compile(r"""\bmodified["']?:\s*["']?(\d{4}-\d\d-\d\d)""")
_NAME = re.compile(r"""\bname["']?:\s*["']?([\w.-]+)""")
_SUFFIXES = (".json", ".yaml", ".yml")


class NoDatabase(Exception):
    """There is no database, or none of Python's packages."""


def flaws_of(pins: Mapping[str, str], database: Path) -> tuple[date, list[str]]:
    """Return the day of the newest record, and a line for each flaw that is known of `pins`. Raises NoDatabase."""
    newest, found = date.min, list[str]()
    for text in _texts(database):
        days = [date.fromisoformat(day) for day in _MODIFIED.findall(text)]
        newest = max([newest, *days])
        if not {canonicalize_name(name) for name in _NAME.findall(text)} & pins.keys():
            continue
        record = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
        found += [
            f"{name} {version}: {record['id']} {record.get('summary') or record.get('details', '').partition('. ')[0]}"
            for name, version in pins.items()
            if not record.get("withdrawn") and any(_affects(one, name, version) for one in record.get("affected", []))
        ]
    if newest == date.min:
        raise NoDatabase(f"{database} holds no advisories in the format of OSV")
    return newest, sorted(" ".join(line.split()) for line in found)


def _texts(database: Path) -> Iterator[str]:
    if database.is_dir():
        for path in sorted(database.rglob("*")):
            if path.suffix in _SUFFIXES and path.is_file() and ".git" not in path.relative_to(database).parts:
                yield path.read_text(encoding="utf-8")
    elif zipfile.is_zipfile(database):
        with zipfile.ZipFile(database) as archive:
            yield from (archive.read(name).decode() for name in archive.namelist() if name.endswith(_SUFFIXES))
    else:
        raise NoDatabase(f"{database} is neither a folder nor a zip file")


def _affects(affected: Record, name: str, version: str) -> bool:
    package = affected.get("package", {})
    if package.get("ecosystem") != "PyPI" or canonicalize_name(package.get("name", "")) != name:
        return False
    if version in affected.get("versions", []):
        return True
    ranges = [one["events"] for one in affected.get("ranges", []) if one.get("type") == "ECOSYSTEM"]
    try:
        return any(_within(events, Version(version)) for events in ranges)
    except InvalidVersion:
        return True  # doubt is a flaw that somebody reads


def _within(events: list[Mapping[str, str]], version: Version) -> bool:
    """Whether a version lies in a range: at or after an introduction, and not at or after a fix."""
    inside = False
    pairs = [next(iter(event.items())) for event in events]
    for kind, text in sorted(pairs, key=lambda pair: Version(pair[1])):
        reached = Version(text) <= version
        if kind == "introduced":
            inside = inside or reached
        elif (kind == "fixed" and reached) or (kind == "last_affected" and Version(text) < version):
            inside = False
    return inside
