"""From file, environment and options to settings, or to the list of all mistakes in them.

Options go over the environment, that over the file, the file over the defaults, setting by setting. Every mistake is
found in one go: unknown names, values that cannot be, and rules between settings, which are tried with the defaults in
place of what was wrong and reported only when all that they are about was right by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from offloaderd.core.errors import InvalidConfig
from offloaderd.core.section import Section
from offloaderd.daemon.settings.fields import Setting, all_settings, literal, section_types, shown
from offloaderd.daemon.settings.given import Given, from_environment, from_file, from_options
from offloaderd.daemon.settings.rules import broken_rules
from offloaderd.daemon.settings.sections import Settings

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SHOWN_CHARS_MAX = 80


@dataclass(frozen=True, slots=True)
class Row:
    """One setting as it is shown: secrets masked, `source` one of default, file, environment, option."""

    key: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of reading the settings: they and their rows, or None, no rows, and every mistake, one a line."""

    settings: Settings | None
    rows: tuple[Row, ...]
    mistakes: tuple[str, ...]


def load(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """Read the settings. Raises InvalidConfig whose message has one line for each mistake."""
    report = check(path, environ)
    if report.settings is None:
        count = len(report.mistakes)
        head = "the settings have a mistake" if count == 1 else f"the settings have {count} mistakes"
        raise InvalidConfig("\n  ".join([f"{head}:", *report.mistakes]), hint="docs/settings.md describes each setting")
    return report.settings


def usable(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """Read the settings with defaults in place of what is wrong: for asking a daemon that runs, not for running one.

    Raises InvalidConfig only for a file that cannot be read or parsed.
    """
    return _read(path, environ, {})[0]


def check(path: Path | None, environ: Mapping[str, str], options: Mapping[str, str] = MappingProxyType({})) -> Report:
    """Read the settings and report; raises InvalidConfig only for a file that cannot be read or parsed.

    `options` are those of a job, by `section.field`.
    """
    settings, values, mistakes, doubtful = _read(path, environ, options)
    for rule in broken_rules(settings):
        if doubtful.isdisjoint(rule.keys):
            places = [values[key].place for key in rule.keys if key in values]
            mistakes.append(f"{', '.join(places) or 'defaults'}: {rule.text}")
    if mistakes:
        return Report(None, (), tuple(mistakes))
    return Report(settings, describe(settings, {key: given.source for key, given in values.items()}), ())


def _read(
    path: Path | None, environ: Mapping[str, str], options: Mapping[str, str]
) -> tuple[Settings, dict[str, Given], list[str], set[str]]:
    """Return the settings with defaults in place of wrong ones, what was given, mistakes, and keys in doubt."""
    parsed_all = [from_file(path)] if path else []
    parsed_all += [from_environment(environ), from_options(options)]
    values = {key: given for parsed in parsed_all for key, given in parsed.values.items()}
    mistakes = [mistake for parsed in parsed_all for mistake in parsed.mistakes]
    doubtful = {key for parsed in parsed_all for key in parsed.meant if key not in values}
    sections: dict[str, Any] = {}
    for name, kind in section_types().items():
        own = {given.key.rpartition(".")[2]: given for given in values.values() if given.key.startswith(f"{name}.")}
        sections[name], wrong = _section(name, kind, own)
        mistakes.extend(wrong.values())
        doubtful.update(wrong)
    renamed = tuple(line for parsed in parsed_all for line in parsed.renamed.values())
    return Settings(**sections, renamed=renamed), values, mistakes, doubtful


def describe(settings: Settings, sources: Mapping[str, str] | None = None) -> tuple[Row, ...]:
    """Show every setting; `sources` says where the keys that are not at their default come from."""
    rows = []
    for setting in all_settings():
        value = getattr(getattr(settings, setting.section), setting.name)
        rows.append(Row(setting.key, shown(setting, value), (sources or {}).get(setting.key, "default")))
    return tuple(rows)


def _section(name: str, kind: type[Section], own: Mapping[str, Given]) -> tuple[Section, dict[str, str]]:
    """Return the section with defaults in place of wrong values, and the mistakes by key."""
    try:
        return kind.model_validate({field: given.value for field, given in own.items()}), {}
    except ValidationError as error:
        known = {setting.key: setting for setting in all_settings()}
        wrong: dict[str, str] = {}
        for details in error.errors(include_url=False):
            field = str(details["loc"][0])
            wrong.setdefault(f"{name}.{field}", _explain(known[f"{name}.{field}"], own[field], details))
        good = {field: given.value for field, given in own.items() if f"{name}.{field}" not in wrong}
        return kind.model_validate(good), wrong


def _explain(setting: Setting, given: Given, details: ErrorDetails) -> str:
    """Say in one line where a wrong value stands, what is wrong with it and what may stand there."""
    kind = details["type"]
    near = get_close_matches(str(given.value), setting.words, 1)
    if kind.startswith(("greater_than", "less_than")):
        problem = "out of range"
    elif near:
        problem = f"did you mean {near[0]}?"
    elif kind.startswith("string_pattern"):
        problem = "has not the right form"
    elif kind == "value_error":
        problem = details["msg"].removeprefix("Value error, ")
    else:
        problem = details["msg"][:1].lower() + details["msg"][1:]
    allowed = f"; allowed: {setting.allowed}" if setting.allowed else ""
    return f"{given.place}{_shown(setting, given.value)}: {problem}{allowed}"


def _shown(setting: Setting, value: object) -> str:
    if setting.is_secret:
        return ""
    if not isinstance(value, str | int | float):
        return f" is a {'table' if isinstance(value, dict) else type(value).__name__}"
    text = literal(value)
    return f" = {text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + '…'}"
