"""Which files of this tree a file imports, and which a test reaches, read from the source without running it.

Imports inside functions count, those for types alone do not. What a file names as text alone (`pytest_plugins`, a
module that a child process runs) is not seen.
"""

from __future__ import annotations

import ast
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
OURS = ("offloaderd", "tests")


class Imports:
    """The imports of one state of the tree; files are named by their path in it."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._texts: dict[str, str] = {}
        self._direct: dict[str, tuple[str, ...]] = {}

    def text(self, file: str) -> str:
        """Return a file's source."""
        if file not in self._texts:
            self._texts[file] = (self._root / file).read_text(encoding="utf-8")
        return self._texts[file]

    def direct(self, file: str) -> tuple[str, ...]:
        """Return the files that a file imports itself, with the packages that they are in."""
        if file not in self._direct:
            names = _imported(ast.parse(self.text(file), file), list(Path(file).with_suffix("").parts[:-1]))
            self._direct[file] = tuple(sorted({found for name in names for found in self._files(name)}))
        return self._direct[file]

    def distances(self, file: str, *, below: str = "") -> dict[str, int]:
        """Return all files that a file reaches, itself included, by the imports between; only those `below` a path."""
        found = {file: 0}
        queue = [file]
        for one in queue:
            for other in self.direct(one):
                if other not in found and other.startswith(below):
                    found[other] = found[one] + 1
                    queue.append(other)
        return found

    def of_test(self, file: str) -> list[str]:
        """Return what a test module is made of below tests/: itself, what it imports there, and its conftests."""
        found = set(self.distances(file, below="tests/"))
        for folder in Path(file).parents:
            conftest = str(folder / "conftest.py")
            if conftest.startswith("tests/") and (self._root / conftest).is_file():
                found |= self.distances(conftest, below="tests/").keys()
        return sorted(found)

    @cached_property
    def unit_tests(self) -> list[str]:
        """All modules of unit tests."""
        return sorted(str(path.relative_to(self._root)) for path in self._root.glob("tests/unit/**/test_*.py"))

    def reaching(self, file: str) -> list[str]:
        """Return the modules of unit tests whose imports reach a file, the nearest first."""
        found = {test: reached[file] for test in self.unit_tests if file in (reached := self.distances(test))}
        return sorted(found, key=lambda test: (found[test], test))

    def _files(self, name: str) -> Iterator[str]:
        """Yield the files of a module's name, packages first; of a name in a module, those of the module."""
        parts = name.split(".")
        if parts[0] not in OURS:
            return
        for end in range(1, len(parts) + 1):
            path = Path(*parts[:end])
            for file in (str(path / "__init__.py"), f"{path}.py"):
                if (self._root / file).is_file():
                    yield file


def _imported(node: ast.AST, package: list[str]) -> Iterator[str]:
    """Yield the dotted names that a piece of code imports."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _imported(other, package)
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            above = package[: len(package) + 1 - child.level] if child.level else []
            module = ".".join([*above, *filter(None, [child.module])])
            yield from (f"{module}.{alias.name}" for alias in child.names)
        else:
            yield from _imported(child, package)
