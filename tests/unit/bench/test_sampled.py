"""The parts of the daemon's CPU are those of its code as it is."""

from __future__ import annotations

from pathlib import Path

from bench.sampled import PARTS

ROOT = Path(__file__).parents[3]


def test_parts_are_files_that_exist() -> None:
    """A module that is renamed would be booked for no part, and nobody would see it."""
    own = [file for files in PARTS.values() for file in files if file.startswith("offloaderd/")]
    assert [file for file in own if not (ROOT / file).exists()] == []
