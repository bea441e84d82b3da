"""A module of this tree with changed source, for one process and its children; nothing is written.

A finder at the head of sys.meta_path compiles the changed text in place of the file. A Python that the process starts
takes the same: the environment names the file and its text, and tools/children/sitecustomize.py installs the finder.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

VARIABLE = "CHANGED_MODULE"
CHILDREN = Path(__file__).resolve().parent / "children"


def module_name(file: str) -> str:
    """Return the name by which a file of the tree is imported."""
    return ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")


class ChangedModule(MetaPathFinder):
    """Finds one module, with another text than its file has; `imported` and `error` say what became of it."""

    def __init__(self, root: Path, file: str, text: str) -> None:
        self.name = module_name(file)
        self.path = root / file
        self.text = text
        self.imported = False
        self.error = ""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the changed module; every other one is left to the finders behind this one."""
        if fullname != self.name:
            return None
        places = [str(self.path.parent)] if self.path.name == "__init__.py" else None
        return spec_from_file_location(fullname, self.path, loader=_Loader(self), submodule_search_locations=places)


class _Loader(SourceFileLoader):
    """Compiles the changed text; what is compiled of the file itself is neither read nor replaced."""

    def __init__(self, changed: ChangedModule) -> None:
        super().__init__(changed.name, str(changed.path))
        self._changed = changed

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._changed.text, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        self._changed.imported = True
        try:
            super().exec_module(module)
        except BaseException as error:
            self._changed.error = f"{type(error).__name__}: {error}"
            raise


def install(root: Path, file: str, text: str) -> ChangedModule:
    """Change a module for this process, which has not imported it, and for every Python that it starts."""
    changed = ChangedModule(root, file, text)
    sys.meta_path.insert(0, changed)
    os.environ[VARIABLE] = json.dumps([str(root), file, text])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CHILDREN), os.environ.get("PYTHONPATH")]))
    return changed


def install_from_environment() -> None:
    """Change in a child what is changed in its parent."""
    if found := os.environ.get(VARIABLE):
        root, file, text = json.loads(found)
        sys.meta_path.insert(0, ChangedModule(Path(root), file, text))
