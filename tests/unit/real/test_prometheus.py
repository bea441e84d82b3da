"""Where Prometheus comes from: the PATH, the cache, Debian; and what is said when none of them has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.real.prometheus import NotToBeHad, programs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all programs of a machine that has none, and an empty cache beside it."""
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("OFFLOADERD_SERVER_JARS", str(tmp_path / "cache"))
    return path


def program(machine: Path, name: str, text: str) -> Path:
    """Put a shell script on the PATH."""
    path = machine / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_programs_of_the_path_are_taken(machine: Path) -> None:
    """Who has both gets them; who has one of them gets neither, so that they are of one version."""
    tool = program(machine, "promtool", "")
    with pytest.raises(NotToBeHad):
        programs()
    server = program(machine, "prometheus", "")
    assert programs() == (server, tool)


def test_a_machine_that_is_no_debian_is_told_so(machine: Path) -> None:
    """The reason names what is missing, and nothing is left in the cache."""
    with pytest.raises(NotToBeHad, match="no apt-get and no dpkg-deb"):
        programs()
    assert not (machine.parent / "cache").exists()


def test_a_mirror_that_is_out_of_reach_is_told(machine: Path) -> None:
    """What apt-get said is the reason; the next try begins anew, and the one that succeeds stays."""
    unpacked = '/bin/mkdir -p "$3/usr/bin"; : > "$3/usr/bin/prometheus"; : > "$3/usr/bin/promtool"'
    program(machine, "dpkg-deb", unpacked)
    program(machine, "apt-get", "echo E: Unable to fetch some archives; exit 100")
    with pytest.raises(NotToBeHad, match="Unable to fetch some archives"):
        programs()
    cache = machine.parent / "cache"
    assert [path.name for path in cache.iterdir()] == ["prometheus.lock"]
    program(machine, "apt-get", "for last; do :; done; [ $last = update ] || : > prometheus_1_amd64.deb")
    assert programs().promtool == cache / "prometheus" / "promtool"
    program(machine, "apt-get", "exit 1")
    assert programs().prometheus.exists(), "from the cache"
