"""`make audit`: compare the locked requirements with the advisories of the Python ecosystem (OSV), by `uv audit`.

With --database, as for a release, they are compared with a folder or archive of advisories instead, without a network;
one whose newest record is more than --days old has audited nothing.

A service that does not answer, or that does not know a flaw that everybody knows, has audited nothing: that has an exit
code of its own, and is never told as an audit without flaws. `make check` takes it (--lenient), since machines without
the service have to pass it too, and says it in its last line; .ci/run says it again in its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from offloaderd.core.clock import SystemClock
from tools.advisories import NoDatabase, flaws_of

ROOT = Path(__file__).resolve().parent.parent
KNOWN = {"jinja2": "2.4.1"}
"""A release with published flaws: an answer without them is no answer."""
TIMEOUT_S = 120
DAYS_MAX = 14
"""Age of a database, by its newest record, up to which it counts."""
NOT_AUDITED = 3
ADVICE = "`make audit` has to be run where the service is reached (docs/security.md, Dependencies)."
_PIN = re.compile(r"(?m)^([a-z0-9][a-z0-9._-]*)==([^\s\\;]+)")


class NotAudited(Exception):
    """The service was not reached, or cannot be relied on."""


def locked(directory: Path) -> dict[str, str]:
    """Return name and version of everything that the files in `directory` pin; they agree (tests/test_tidy.py)."""
    return {
        name: version
        for file in sorted(directory.glob("*.txt"))
        for name, version in _PIN.findall(file.read_text(encoding="utf-8"))
    }


def audit(pins: dict[str, str], url: str | None) -> list[str]:
    """Return a line for each flaw that is known of `pins`. Raises NotAudited."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "pyproject.toml").write_text(project(pins))
        (place / "uv.lock").write_text(lock(pins))
        service = ["--service-url", url] if url else []
        command = [str(Path(sys.executable).with_name("uv")), "audit", "--frozen", "--output-format", "json", *service]
        features = "audit-command,json-output"
        done = subprocess.run(
            [*command, "--preview-features", features, "--no-config"],
            cwd=place,
            env={**os.environ, "UV_HTTP_RETRIES": "1"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    if done.returncode not in {0, 1}:
        raise NotAudited(" ".join(done.stderr.split()) or f"uv audit ended with {done.returncode}")
    found = json.loads(done.stdout)
    if found["summary"]["audited_packages"] != len(pins):
        raise NotAudited(f"{found['summary']['audited_packages']} of {len(pins)} packages were looked up")
    return [
        f"{one['dependency']['name']} {one['dependency']['version']}: {one['display_id']} {one['summary'] or ''} "
        f"(fixed in {', '.join(one['fix_versions']) or 'no release'}; {one['link']})"
        for one in found["vulnerabilities"]
    ]


def trusted(url: str | None) -> None:
    """Check that the service reports a package with a known flaw. Raises NotAudited."""
    if not audit(KNOWN, url):
        raise NotAudited(f"the service knows no flaw of {KNOWN}")


def compared(pins: dict[str, str], database: Path, days_max: int) -> list[str]:
    """Return a line for each flaw that a database knows of `pins`. Raises NotAudited for an old or missing one."""
    try:
        newest, flaws = flaws_of(pins, database)
        known = flaws_of(KNOWN, database)[1]
    except (NoDatabase, OSError, ValueError) as error:
        raise NotAudited(str(error)) from None
    days = (datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC).date() - newest).days
    if days > days_max:
        raise NotAudited(f"the newest advisory in {database} is of {newest}, {days} days ago: {days_max} is the most")
    if not known:
        raise NotAudited(f"{database} knows no flaw of {KNOWN}")
    return flaws


def project(pins: dict[str, str]) -> str:
    """Return a project that requires all pins and nothing else."""
    wanted = json.dumps([f"{name}=={version}" for name, version in pins.items()])
    return f'[project]\nname = "audited"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = {wanted}\n'


def lock(pins: dict[str, str]) -> str:
    """Return the lock of that project, so that nothing is resolved again."""
    packages = "".join(
        f'\n[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {{ registry = "https://registry.invalid" }}\n'
        for name, version in pins.items()
    )
    needs = ", ".join(f'{{ name = "{name}" }}' for name in pins)
    head = 'version = 1\nrevision = 3\nrequires-python = ">=3.11"\n'
    own = f'\n[[package]]\nname = "audited"\nversion = "0"\nsource = {{ virtual = "." }}\ndependencies = [{needs}]\n'
    return head + own + packages


def main(arguments: list[str] | None = None) -> int:
    """Audit, and print the result in one last line: 0 no flaw is known, 1 flaws, 3 nothing could be audited."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lenient", action="store_true", help="0 where nothing could be audited; the line says it")
    parser.add_argument("--outcome", type=Path, help="a file for that line, for whoever says more after it")
    parser.add_argument("--service-url", help="another service with the API of OSV")
    parser.add_argument("--requirements", type=Path, default=ROOT / "requirements", help="where the locks are")
    parser.add_argument("--database", type=Path, help="a folder or zip file of advisories, in place of the service")
    parser.add_argument("--days", type=int, default=DAYS_MAX, help="most days since its newest record (%(default)s)")
    given = parser.parse_args(arguments)
    pins = locked(given.requirements)
    try:
        if given.database is not None:
            flaws = compared(pins, given.database, given.days)
        else:
            trusted(given.service_url)
            flaws = audit(pins, given.service_url)
    except (NotAudited, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"no audit: {error}\n")
        line = f"NOT AUDITED: {len(pins)} locked packages were compared with no list of known flaws. {ADVICE}"
        code = 0 if given.lenient else NOT_AUDITED
    else:
        sys.stderr.writelines(f"{flaw}\n" for flaw in flaws)
        line, code = f"audited: {len(pins)} locked packages, {len(flaws)} known flaws", 1 if flaws else 0
    sys.stdout.flush()
    sys.stderr.write(f"{line}\n")
    if given.outcome is not None:
        given.outcome.write_text(f"{line}\n", encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
