"""`make site`: the pages of docs/ as a site with search, in build/site/VERSION; nothing is fetched, then or by readers.

The pages stay where they are: mkdocs reads a tree of symbolic links to them and to what they link to. The navigation
is the map in docs/README.md. Beside the pages there is one of the Python client, from its docstrings. Directories of
other versions in build/site stay, and the selector on each page lists them.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from offloaderd import __version__, client
from tools.failures import anchor

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parent.parent
SOURCE, SITE = ROOT / "build" / "site-source", ROOT / "build" / "site"
MAP = Path("docs/README.md")
FIRST = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md")
CLIENT = Path("docs/client-reference.md")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
_FENCE = re.compile(r"(?m)^(\s*```\w+) \w+$")
LOADING = {"script", "link", "img", "iframe"}
"""Tags whose target a browser fetches by itself."""
REDIRECT = '<!doctype html>\n<meta charset="utf-8">\n<meta http-equiv="refresh" content="0; url={0}/index.html">\n'


class BrokenSite(Exception):
    """mkdocs warns, links lead nowhere, or something would be loaded from elsewhere; the message lists all of it."""


def source(to: Path) -> None:
    """Lay out symbolic links to all pages, and to what they link to; and the page of the client."""
    shutil.rmtree(to, ignore_errors=True)
    waiting = [ROOT / name for name in FIRST] + [path for path in (ROOT / "docs").rglob("*") if path.is_file()]
    while waiting:
        path = waiting.pop()
        link = to / path.relative_to(ROOT)
        if link.is_symlink() or not path.is_file():
            continue
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
        if path.suffix == ".md":
            names = _LINK.findall(path.read_text(encoding="utf-8"))
            waiting += [(path.parent / unquote(name)).resolve() for name in names]
    (to / CLIENT).write_text(client_page(), encoding="utf-8")


def client_page() -> str:
    """Return the page of what `offloaderd.client` exports, which mkdocstrings fills in."""
    head = (
        "# Reference of the Python client\n\nWhat `offloaderd.client` exports; [client.md](client.md) has examples.\n"
    )
    return head + "".join(f"\n::: offloaderd.client.{name}\n" for name in client.__all__)


def navigation(text: str) -> list[dict[str, Any]]:
    """Return the navigation from the map of the pages: its groups, each page where it is named first."""
    found: list[dict[str, Any]] = [{"offloaderd": "README.md"}]
    seen: set[str] = set()
    for group in re.finditer(r"\*\*(?P<name>[^*\n]+)\*\*\n(?P<rows>(?:\n|\|.*)+)", text):
        pages = [str((ROOT / MAP.parent / name).resolve().relative_to(ROOT)) for name in _LINK.findall(group["rows"])]
        new = [page for page in dict.fromkeys(pages) if page not in seen]
        seen.update(new)
        if "docs/client.md" in new:
            new.insert(new.index("docs/client.md") + 1, str(CLIENT))
        found.append({group["name"]: new})
    return [*found, {"Changes": "CHANGELOG.md"}]


def on_page_markdown(markdown: str, **_: object) -> str:
    """Take away the second word of fences, which is for tests/pages.py; mkdocs calls this for each page."""
    return _FENCE.sub(r"\1", markdown)


def slug(text: str, separator: str) -> str:
    """Return the anchor of a heading, as on GitHub; links to headings are the same there and here."""
    return anchor(text) if separator == "-" else text


def configuration(docs: Path, to: Path) -> dict[str, Any]:
    """Return the settings of mkdocs."""
    python = {
        "paths": [str(ROOT)],
        "options": {
            "show_source": False,
            "show_root_heading": True,
            "show_signature_annotations": True,
            "members_order": "source",
            "heading_level": 2,
            "inherited_members": True,
            "line_length": 100,
        },
    }
    return {
        "site_name": "offloaderd",
        "site_description": "Streaming tiered storage for Apache Pulsar",
        "docs_dir": str(docs),
        "site_dir": str(to),
        "use_directory_urls": False,
        "nav": navigation((ROOT / MAP).read_text(encoding="utf-8")),
        "theme": {
            "name": "material",
            "font": False,
            "features": ["content.code.copy", "navigation.top", "search.highlight", "search.suggest", "toc.follow"],
            "palette": [
                {"media": "(prefers-color-scheme: light)", "scheme": "default", "primary": "indigo"},
                {"media": "(prefers-color-scheme: dark)", "scheme": "slate", "primary": "indigo"},
            ],
        },
        "extra": {"version": {"provider": "mike"}, "generator": False},
        "hooks": [__file__],
        "plugins": ["search", {"mkdocstrings": {"handlers": {"python": python}}}],
        "markdown_extensions": [
            "tables",
            "sane_lists",
            "pymdownx.superfences",
            "pymdownx.highlight",
            "md_in_html",
            {"toc": {"slugify": slug, "permalink": True}},
        ],
        "validation": {
            "links": dict.fromkeys(("not_found", "anchors", "absolute_links", "unrecognized_links"), "warn")
        },
    }


class _Warnings(logging.Handler):
    """Collects the warnings of mkdocs and its plugins."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note one."""
        self.found.append(record.getMessage())


def build(to: Path, pages: Path = SOURCE) -> None:
    """Build one version into a directory, which is emptied; `pages` is for the tree of links.

    Raises BrokenSite with all warnings of mkdocs, and all links that are wrong in what was built.
    """
    from mkdocs.commands.build import build as run  # noqa: PLC0415 - the extra `site`, of this function alone
    from mkdocs.config.base import load_config  # noqa: PLC0415

    source(pages)
    logger, warnings = logging.getLogger("mkdocs"), _Warnings()
    logger.addHandler(warnings)
    try:
        config = load_config(config_file=_empty(pages.with_suffix(".yml")), **configuration(pages, to))
        config.plugins.on_startup(command="build", dirty=False)
        try:
            run(config)
        finally:
            config.plugins.on_shutdown()
    finally:
        logger.removeHandler(warnings)
    if broken := [*warnings.found, *broken_links(to)]:
        raise BrokenSite("\n".join(broken))


def _empty(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}\n", encoding="utf-8")
    return str(path)


class _Page(HTMLParser):
    """The anchors of a page, and what it links to or loads, with the tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one tag."""
        self.anchors |= {value for key, value in attrs if key in {"id", "name"} and value}
        self.links += [(tag, value) for key, value in attrs if key in {"href", "src"} and value is not None]


def broken_links(site: Path) -> list[str]:
    """Return what is wrong with the links of a built site: missing targets and anchors, and foreign content."""
    site = site.resolve()
    files = [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in files}
    return [
        f"{path.relative_to(site)}: {wrong}"
        for path, page in pages.items()
        for tag, link in page.links
        if (wrong := _wrong(path, tag, link, pages))
    ]


def _wrong(path: Path, tag: str, link: str, pages: Mapping[Path, _Page]) -> str | None:
    """Return what is wrong with a link of a page, None if nothing is."""
    parts = urlsplit(link)
    if parts.netloc or parts.scheme:
        return f"loads {link}" if tag in LOADING and parts.scheme != "data" else None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return f"{link} leads nowhere"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return f"{link} is no heading there"
    return None


def list_versions(site: Path) -> None:
    """Write the list for the selector, newest first, and `latest` and the first page, which lead to the newest."""
    names = [path.name for path in site.iterdir() if (path / "index.html").is_file() and not path.is_symlink()]
    names.sort(key=lambda name: [int(part) if part.isdigit() else -1 for part in name.split(".")], reverse=True)
    versions = [{"version": name, "title": name, "aliases": ["latest"] if name == names[0] else []} for name in names]
    (site / "versions.json").write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")
    (site / "index.html").write_text(REDIRECT.format(names[0]), encoding="utf-8")
    (site / "latest").unlink(missing_ok=True)
    (site / "latest").symlink_to(names[0])


def main() -> None:
    """Build the site."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--version", default=__version__, help="the directory below build/site (default: %(default)s)")
    version = parser.parse_args().version
    try:
        build(SITE / version)
    except BrokenSite as error:
        sys.exit(str(error))
    list_versions(SITE)
    sys.stdout.write(f"{SITE / version}: to read it with search, python -m http.server --directory {SITE}\n")


if __name__ == "__main__":
    main()
