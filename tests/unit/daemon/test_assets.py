"""The style and the script: whole, served as what they are, and asking nobody else for anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tree_sitter_javascript
from tree_sitter import Language, Parser

from offloaderd.daemon.status_page import site
from offloaderd.daemon.status_page.site import ASSETS
from tests.unit.daemon.scene import Scene, opened

REAL_TIME = "HTTP"

PAGES = Path(site.__file__).parent


async def test_assets_are_served_as_what_they_are() -> None:
    """Each has its type, with which alone a browser takes it, as types are not guessed."""
    async with opened(Scene([])) as client:
        for name, kind in ASSETS.items():
            async with client.get(f"/{name}") as answer:
                assert answer.status == 200
                assert answer.headers["Content-Type"] == f"{kind}; charset=utf-8"
                assert await answer.read() == (PAGES / "static" / name).read_bytes()


def test_the_script_is_javascript() -> None:
    """A parser finds no error in it, and would find one."""
    parser = Parser(Language(tree_sitter_javascript.language()))
    script = (PAGES / "static" / "status.js").read_bytes()
    assert not parser.parse(script).root_node.has_error
    assert parser.parse(script + b"\n})();").root_node.has_error


def test_the_script_shows_times_as_the_page_does() -> None:
    """In UTC: a reader's own zone beside it is an hour that nobody finds in a log."""
    assert "toLocale" not in (PAGES / "static" / "status.js").read_text()


@pytest.mark.parametrize(
    "file", sorted([*PAGES.glob("static/*"), *PAGES.glob("templates/*")]), ids=lambda one: one.name
)
def test_nothing_is_loaded_from_elsewhere(file: Path) -> None:
    """No address of another host in script, style or template, and no way round escaping."""
    text = file.read_text()
    found = set(re.findall(r"(?:https?:)?//[\w.-]+", re.sub(r"(?m)^\s*// .*$", "", text)))
    assert found <= {"http://www.w3.org"}  # the name of SVG
    assert not re.search(r"@import|url\(|\|\s*safe|autoescape|innerHTML|eval\(|Function\(", text)
