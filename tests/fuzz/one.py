"""Fuzz one target in this process, guided by the coverage of our code; the arguments are libFuzzer's."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["offloaderd"]):
    from tests.fuzz.targets import targets


def main() -> None:
    """Run until libFuzzer's limits or the first finding, which ends the process."""
    found = targets()[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], found.feed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
