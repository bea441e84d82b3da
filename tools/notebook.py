"""Run the worked example docs/notebook.py cell by cell, and write it as the last section of docs/spark.md.

A cell begins with `# %%`; one of text with `# %% [markdown]`. What a cell prints stands below it. The section is made
by `make notebook`, on the servers of the tests; `python tools/docs.py --check` compares everything of it but what was
printed, which is of one run, with the script.
"""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = "docs/notebook.py"
PAGE = "docs/spark.md"
HEADING = "## A worked example\n"
PICTURE = "docs/images/lag.svg"
_OUTPUT = re.compile(r"```text\n(.*?)```\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: a text in Markdown, or code, which begins in a line of the script."""

    text: str
    is_code: bool
    line: int

    @property
    def prints(self) -> bool:
        """Whether it prints something when it is run."""
        return self.is_code and "print(" in self.text


def cells_of(script: str) -> list[Cell]:
    """Cut a script into its cells."""
    found = []
    line = 1
    for part in re.split(r"(?m)^(?=# %%)", script):
        head, _, body = part.partition("\n")
        if part.strip():
            is_code = "[markdown]" not in head
            text = body if is_code else re.sub(r"(?m)^# ?", "", body)
            found.append(Cell(text.strip("\n") + "\n", is_code, line + 1))
        line += part.count("\n")
    return found


def run(cells: list[Cell], name: str = SCRIPT) -> list[str]:
    """Run all cells in one namespace; returns what those that print have printed."""
    space: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for cell in cells:
        if not cell.is_code:
            continue
        said = StringIO()
        code = compile("\n" * (cell.line - 1) + cell.text, name, "exec")
        with redirect_stdout(said):
            exec(code, space)  # noqa: S102 - the script is ours
        if cell.prints:
            printed.append(said.getvalue())
    return printed


def section(cells: list[Cell], printed: list[str]) -> str:
    """Return the section: text, code and below it what was printed; the picture at the end."""
    outputs = iter(printed)
    parts = []
    for cell in cells:
        parts.append(f"```python spark\n{cell.text}```\n" if cell.is_code else cell.text)
        if cell.prints:
            parts.append(f"```text\n{next(outputs)}```\n")
    return "\n".join([*parts, f"![entries per minute and lag](images/{Path(PICTURE).name})\n"])


def committed_section() -> str:
    """Return the section as the page has it."""
    return "".join((ROOT / PAGE).read_text(encoding="utf-8").partition(HEADING)[1:])


def page_with(made: str) -> str:
    """Return the page with another section in place of its own."""
    return (ROOT / PAGE).read_text(encoding="utf-8").partition(HEADING)[0] + made


def spark_page() -> str:
    """Return the page with the section as the script makes it, and what the last run printed."""
    cells = cells_of((ROOT / SCRIPT).read_text(encoding="utf-8"))
    printed = _OUTPUT.findall(committed_section())
    expected = sum(cell.prints for cell in cells)
    return page_with(section(cells, printed if len(printed) == expected else ["run it: make notebook\n"] * expected))


def main() -> None:
    """Run the script and print the section; the environment names the file of the picture (PICTURE)."""
    cells = cells_of((ROOT / SCRIPT).read_text(encoding="utf-8"))
    sys.stdout.write(section(cells, run(cells)))


if __name__ == "__main__":
    main()
