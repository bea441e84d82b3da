"""From file, environment and options to settings, or to a list of all mistakes in them.

Options override the environment, which overrides the file, which overrides the defaults, setting by setting. Every
mistake is found in one run: unknown names with the nearest known one, invalid values, broken rules between settings.
Rules are checked with the defaults in place of invalid values, and reported only when all their settings were valid.

Values of unknown names are never shown: a misspelt secret is still a secret.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from offloaderd.core.errors import InvalidConfig
from offloaderd.core.renamed import SETTINGS
from offloaderd.core.section import Section, Shape
from offloaderd.daemon.settings.rules import broken_rules
from offloaderd.daemon.settings.sections import (
    ENVIRONMENT_PREFIX,
    Setting,
    Settings,
    all_settings,
    environment_name,
    fields_of,
    literal,
    section_types,
    shown,
    value_of,
)
from offloaderd.objects.settings import SERVICES, ServiceName, ServiceSettings


@dataclass(frozen=True, slots=True)
class Given:
    """A given value; `place` is the file and key, or the variable."""

    value: object
    source: str
    place: str


@dataclass(slots=True)
class ParsedSettings:
    """Values by key, mistakes found on the way, the keys those were probably meant for, and old names by key."""

    values: dict[str, Given] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)
    meant: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)
    known: frozenset[str] = field(default_factory=lambda: frozenset(setting.key for setting in all_settings()))

    def add(self, name: str, value: object, source: str, place: str) -> None:
        """Take a value under its setting's name, or the one of the release before; not both."""
        key, environment = SETTINGS.get(name, name), source == "environment"
        service = service_of(key)
        if service and (flaw := service_flaw(service)):
            self.mistakes.append(f"{readable(place)}: {flaw}")
            return
        if (f"objects.{key.rpartition('.')[2]}" if service else key) not in self.known:
            self.unknown(place, name, environment=environment)
            return
        shown = environment_name(key) if environment else key
        other = self.values.get(key)
        if other is not None and (name != key or key in self.renamed):
            self.mistakes.append(f"{other.place} and {place} are one setting: give {shown} alone")
        elif name != key:
            self.renamed[key] = f"{place} is called {shown} now"
        self.values[key] = Given(value, source, place)

    def unknown(self, place: str, key: str, *, environment: bool) -> None:
        """Note a name that does not exist; a quoted TOML key may hold line breaks, which must not make more lines."""
        place = readable(place)
        nearest = nearest_key(key)
        if nearest is None:
            self.mistakes.append(f"{place}: no such setting")
            return
        self.meant.update(key for key in (*self.known, nearest) if key.startswith(nearest))
        name = environment_name(nearest) if environment else nearest
        self.mistakes.append(f"{place}: no such setting; did you mean {name}?")


def service_of(key: str) -> str:
    """Return the name of the further service whose setting this is, if it is one; else empty."""
    table, _, name = key.rpartition(".")[0].rpartition(".")
    return name if table == SERVICES else ""


def service_flaw(name: str) -> str:
    """Return why a further service cannot have this name; empty if it can."""
    try:
        _NAME.validate_python(name)
    except ValidationError:
        return f"not the name of a service; allowed: {_NAME_FORM}"
    return ""


_NAME: TypeAdapter[str] = TypeAdapter(ServiceName)
_NAME_FORM = next(mark.text for mark in get_args(ServiceName) if isinstance(mark, Shape))


def readable(place: str) -> str:
    """Return a place in one line."""
    return place if place.isprintable() else ascii(place)


def nearest_key(key: str) -> str | None:
    """Return the setting or section that `key` most likely stands for, or None.

    A name that is right in another section is the likeliest, then one that is spelt nearly so.
    """
    if service := service_of(key):
        close = get_close_matches(key.rpartition(".")[2], fields_of(ServiceSettings), 1)
        return f"{SERVICES}.{service}.{close[0]}" if close else None
    names = {setting.key: setting.name for setting in all_settings()}
    if "." not in key and (close := get_close_matches(key, section_types(), 1)):
        return close[0]
    name = key.rpartition(".")[2]
    elsewhere = [one for one, its_name in names.items() if its_name == name]
    if len(elsewhere) == 1:
        return elsewhere[0]
    if close := get_close_matches(key, names, 1, 0.75):
        return close[0]
    if close := get_close_matches(name, names.values(), 1, 0.75):
        return next(one for one, its_name in names.items() if its_name == close[0])
    if close := get_close_matches(key, SETTINGS, 1, 0.75):
        return SETTINGS[close[0]]
    return None


def from_file(path: Path) -> ParsedSettings:
    """Read a TOML file. Raises InvalidConfig, in one line, for a file that cannot be read or parsed."""
    parsed = ParsedSettings()
    for section, table in _parsed(path).items():
        place = f"{path}: {section}"
        if section not in section_types():
            parsed.unknown(place, section, environment=False)
        elif not isinstance(table, dict):
            parsed.mistakes.append(f"{place} is a section, not a value: write [{section}] and its settings below")
        else:
            for name, value in table.items():
                key = f"{section}.{name}"
                if key == SERVICES:
                    _services_from_file(parsed, path, value)
                else:
                    parsed.add(key, value, "file", f"{path}: {key}")
    return parsed


def _services_from_file(parsed: ParsedSettings, path: Path, tables: object) -> None:
    """Read the tables of further services."""
    place = f"{path}: {SERVICES}"
    if not isinstance(tables, dict):
        parsed.mistakes.append(f"{place} is a table of services: write [{SERVICES}.NAME] and its settings below")
        return
    for name, table in tables.items():
        if flaw := service_flaw(name):
            parsed.mistakes.append(f"{readable(f'{place}.{name}')}: {flaw}")
        elif not isinstance(table, dict):
            parsed.mistakes.append(f"{place}.{name} is a section, not a value: write [{SERVICES}.{name}]")
        elif not table:
            parsed.mistakes.append(f"{place}.{name} is empty: set its kind and its bucket")
        else:
            for field, value in table.items():
                key = f"{SERVICES}.{name}.{field}"
                parsed.add(key, value, "file", f"{path}: {key}")


def from_environment(environ: Mapping[str, str]) -> ParsedSettings:
    """Collect every variable that begins with OFFLOADERD__; the rest of the name may be of any case."""
    parsed = ParsedSettings()
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
        place = f"environment {variable}"
        service = key.rpartition(".")[2] if key.rpartition(".")[0] == SERVICES else ""
        if key in section_types([service]) or key == SERVICES:
            named = [service or "name"] if key.startswith(SERVICES) else []
            first = next(one.environment for one in all_settings(named) if one.section.startswith(key))
            parsed.mistakes.append(f"{place} names a section: add __ and the setting, as in {first}")
        else:
            parsed.add(key, environ[variable], "environment", place)
    return parsed


def from_options(options: Mapping[str, str]) -> ParsedSettings:
    """Collect settings that a caller names by `section.field`, as options of a job."""
    parsed = ParsedSettings()
    for key, value in sorted(options.items()):
        parsed.add(key, value, "option", f"option {key}")
    return parsed


def _parsed(path: Path) -> dict[str, object]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InvalidConfig(
            f"cannot read the settings file {path}: {error.strerror}",
            hint="name another with --config; configs/offloaderd.toml is one to start from",
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path}: byte {error.start} is not UTF-8", hint="save the file as UTF-8") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).rpartition(" (at ")
        at = re.match(r"line \d+, column \d+", where)
        line = at[0] if at else f"line {text.count(chr(10)) + 1}"
        twice = "overwrite" in what or "twice" in what
        hint = "the name is there twice: remove one"
        hint = hint if twice else 'texts need quotes, as in bucket = "name"'
        raise InvalidConfig(f"{path}: {line}: not TOML: {what or error}", hint=hint) from error


@dataclass(frozen=True, slots=True)
class Row:
    """A setting as it is shown: secrets masked, `source` one of default, file, environment, option."""

    key: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Report:
    """The result of reading the settings: settings and rows, or None and every mistake, one a line."""

    settings: Settings | None
    rows: tuple[Row, ...]
    mistakes: tuple[str, ...]


def load(path: Path | None, environ: Mapping[str, str], options: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """Read the settings; `options` as in `check`. Raises InvalidConfig whose message has one line for each mistake."""
    report = check(path, environ, options)
    if report.settings is None:
        count = len(report.mistakes)
        head = "the settings have a mistake" if count == 1 else f"the settings have {count} mistakes"
        raise InvalidConfig("\n  ".join([f"{head}:", *report.mistakes]), hint="docs/settings.md describes each setting")
    return report.settings


def usable(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """Read the settings with defaults in place of invalid values: for calls to a daemon, not to run one.

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
    """Return the settings with defaults in place of invalid ones, the given values, mistakes, and doubtful keys."""
    parsed_all = [from_file(path)] if path else []
    parsed_all += [from_environment(environ), from_options(options)]
    values = {key: given for parsed in parsed_all for key, given in parsed.values.items()}
    mistakes = [mistake for parsed in parsed_all for mistake in parsed.mistakes]
    doubtful = {key for parsed in parsed_all for key in parsed.meant if key not in values}
    sections: dict[str, Any] = {}
    services: dict[str, ServiceSettings] = {}
    for name, kind in section_types(filter(None, dict.fromkeys(map(service_of, values)))).items():
        own = {key.rpartition(".")[2]: given for key, given in values.items() if key.rpartition(".")[0] == name}
        section, wrong = _section(name, kind, own)
        mistakes.extend(wrong.values())
        doubtful.update(wrong)
        if type(section) is ServiceSettings:
            services[name.rpartition(".")[2]] = section
        else:
            sections[name] = section
    if services:
        sections["objects"] = sections["objects"].with_services(services)
    renamed = tuple(line for parsed in parsed_all for line in parsed.renamed.values())
    return Settings(**sections, renamed=renamed), values, mistakes, doubtful


def describe(settings: Settings, sources: Mapping[str, str] | None = None) -> tuple[Row, ...]:
    """Return a row for every setting; `sources` has the sources of values that are no defaults, by key."""
    rows = []
    for setting in all_settings(settings.objects.services):
        value = value_of(settings, setting.key)
        rows.append(Row(setting.key, shown(setting, value), (sources or {}).get(setting.key, "default")))
    return tuple(rows)


def _section(name: str, kind: type[Section], own: Mapping[str, Given]) -> tuple[Section, dict[str, str]]:
    """Return the section with defaults in place of wrong values, and the mistakes by key."""
    try:
        return kind.model_validate({field: given.value for field, given in own.items()}), {}
    except ValidationError as error:
        known = {one.key: one for one in all_settings([name.rpartition(".")[2]] if kind is ServiceSettings else ())}
        wrong: dict[str, str] = {}
        for details in error.errors(include_url=False):
            field = str(details["loc"][0])
            wrong.setdefault(f"{name}.{field}", _explain(known[f"{name}.{field}"], own[field], details))
        good = {field: given.value for field, given in own.items() if f"{name}.{field}" not in wrong}
        return kind.model_validate(good), wrong


def _explain(setting: Setting, given: Given, details: Mapping[str, object]) -> str:
    """Return in one line the place of an invalid value, its problem and the allowed values."""
    kind, message = str(details["type"]), str(details["msg"])
    near = get_close_matches(str(given.value), setting.words, 1)
    if kind.startswith(("greater_than", "less_than")):
        problem = "out of range"
    elif near:
        problem = f"did you mean {near[0]}?"
    elif kind.startswith("string_pattern"):
        problem = "has not the right form"
    elif kind == "value_error":
        problem = message.removeprefix("Value error, ")
    else:
        problem = message[:1].lower() + message[1:]
    allowed = f"; allowed: {setting.allowed}" if setting.allowed else ""
    return f"{given.place}{_shown(setting, given.value)}: {problem}{allowed}"


def _shown(setting: Setting, value: object) -> str:
    if setting.is_secret:
        return ""
    if not isinstance(value, str | int | float):
        return f" is a {'table' if isinstance(value, dict) else type(value).__name__}"
    text = literal(value)
    return f" = {text if len(text) <= 80 else text[:79] + '…'}"
