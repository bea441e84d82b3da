"""The forms of an answer, `-o FORM`: the document of a command as JSON, YAML, names, or a table of all its fields."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from offloaderd.cli import show

Document = Mapping[str, object]
TABLE, WIDE, JSON, YAML, NAME = FORMS = ("table", "wide", "json", "yaml", "name")
STRUCTURED = frozenset({JSON, YAML, NAME})
"""Forms for programs: nothing but the document is written."""

_PLAIN = re.compile(r"[A-Za-z_/][\w./@%+-]*( [\w./@%+-]+)*", re.ASCII)
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Texts that YAML 1.1 or 1.2 reads as something else."""
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_NUMBERS = (int, float)


def written(document: Document, form: str) -> str:
    """Return a document in a form, with the line feed at its end."""
    return FORMATTERS[form](document)


def item(document: Document, form: str) -> str:
    """Return one of several documents in a form for programs: a line of JSON, a document of YAML, or names."""
    if form == JSON:
        return show.json_line(document)
    return ("---\n" if form == YAML else "") + written(document, form)


def rows_of(document: Document) -> Sequence[Document] | None:
    """Return the first list of objects in a document; an empty one only if no other is there. None without a list."""
    lists = [value for value in document.values() if isinstance(value, list | tuple)]
    found = [rows for rows in lists if rows and all(isinstance(row, Mapping) for row in rows)]
    return next(iter([*found, *(rows for rows in lists if not rows)]), None)


def _names(document: Document) -> str:
    """Return the first value of each row of the document's list, or of the document itself, one a line."""
    rows = rows_of(document)
    firsts = [next(iter(row.values()), None) for row in ([document] if rows is None else rows)]
    return "".join(f"{show.visible(_text(one))}\n" for one in firsts if _is_scalar(one) and one is not None)


def _wide(document: Document) -> str:
    """Return a table of all fields of the rows of the document's list, or of those of the document itself."""
    rows = rows_of(document)
    if rows is None:
        facts = [(name, _cell(document, name)) for name, value in document.items() if _is_scalar(value)]
        return show.fact_lines(facts) + "\n"
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if _is_scalar(value)))
    numeric = {name for name in names if any(_is_number(row.get(name)) for row in rows)}
    columns = [(">" if name in numeric else "") + name.upper().replace("_", " ") for name in names]
    return show.rendered(columns, [[_cell(row, name) for name in names] for row in rows]) if names else ""


def _cell(of: Document, name: str) -> str:
    value = of.get(name)
    if not isinstance(value, bool | float):
        return show.cell(of, name) if value is not None else "-"
    return _text(value)


def _text(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _is_number(value: object) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def _yaml(document: Document) -> str:
    """Return YAML in blocks. Its values are those of JSON, so no library is needed."""
    return "".join(f"{line}\n" for line in _block(document))


def _block(value: object) -> Iterator[str]:
    """Yield the lines of a value, each without the indentation of what it is in."""
    if isinstance(value, Mapping) and value:
        for name, one in value.items():
            yield from _entry(f"{_yaml_text(str(name))}:", one, nested="  " if isinstance(one, Mapping) else "")
    elif isinstance(value, list | tuple) and value:
        for one in value:
            first, *others = _block(one)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)
    elif isinstance(value, str):
        yield _yaml_text(value)
    elif isinstance(value, float):
        text = json.dumps(value)
        yield text if "." in text else text.replace("e", ".0e")  # YAML 1.1 reads 1e-07 as a text
    else:
        yield json.dumps(value)


def _entry(key: str, value: object, *, nested: str) -> Iterator[str]:
    lines = list(_block(value))
    if isinstance(value, Mapping | list | tuple) and value:
        yield key
        yield from (f"{nested}{line}" for line in lines)
    else:
        yield f"{key} {lines[0]}"


def _yaml_text(text: str) -> str:
    """Return a text as YAML reads it: plain where it cannot be taken for anything else."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


FORMATTERS: Mapping[str, Callable[[Document], str]] = {
    WIDE: _wide,
    JSON: lambda document: json.dumps(document, indent=2, ensure_ascii=False) + "\n",
    YAML: _yaml,
    NAME: _names,
}
