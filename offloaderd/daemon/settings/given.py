"""What a person wrote: the settings file, the environment and options, as values by key with the place of each.

Names that do not exist are mistakes here, with the nearest one that does. The values of unknown names are never
shown: a misspelt secret is still a secret.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from offloaderd.core.errors import InvalidConfig
from offloaderd.core.renamed import SETTINGS
from offloaderd.daemon.settings.fields import ENVIRONMENT_PREFIX, all_settings, environment_name, section_types


@dataclass(frozen=True, slots=True)
class Given:
    """A value that was written down; `place` is the file and key, or the variable, as a person looks for it."""

    key: str
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
        if key not in self.known:
            self.unknown(place, name, environment=environment)
            return
        shown = environment_name(key) if environment else key
        other = self.values.get(key)
        if other is not None and (name != key or key in self.renamed):
            self.mistakes.append(f"{other.place} and {place} are one setting: give {shown} alone")
        elif name != key:
            self.renamed[key] = f"{place} is called {shown} now"
        self.values[key] = Given(key, value, source, place)

    def unknown(self, place: str, key: str, *, environment: bool) -> None:
        """Note a name that does not exist; a quoted TOML key may hold line breaks, which must not make more lines."""
        place = place if place.isprintable() else ascii(place)
        nearest = nearest_key(key)
        if nearest is None:
            self.mistakes.append(f"{place}: no such setting")
            return
        self.meant.update(setting.key for setting in all_settings() if setting.key.startswith(nearest))
        name = environment_name(nearest) if environment else nearest
        self.mistakes.append(f"{place}: no such setting; did you mean {name}?")


def nearest_key(key: str) -> str | None:
    """Return the setting or section that `key` most likely stands for, or None.

    A name that is right in another section is the likeliest, then one that is spelt nearly so.
    """
    settings = list(all_settings())
    if "." not in key and (close := get_close_matches(key, section_types(), 1)):
        return close[0]
    name = key.rpartition(".")[2]
    elsewhere = [setting.key for setting in settings if setting.name == name]
    if len(elsewhere) == 1:
        return elsewhere[0]
    if close := get_close_matches(key, [setting.key for setting in settings], 1, 0.75):
        return close[0]
    if close := get_close_matches(name, [setting.name for setting in settings], 1, 0.75):
        return next(setting.key for setting in settings if setting.name == close[0])
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
                parsed.add(key, value, "file", f"{path}: {key}")
    return parsed


def from_environment(environ: Mapping[str, str]) -> ParsedSettings:
    """Collect every variable that begins with OFFLOADERD__; the rest of the name may be of any case."""
    parsed = ParsedSettings()
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
        place = f"environment {variable}"
        if key in section_types():
            parsed.mistakes.append(f"{place} names a section: add __ and the setting, as in {_first_of(key)}")
        else:
            parsed.add(key, environ[variable], "environment", place)
    return parsed


def from_options(options: Mapping[str, str]) -> ParsedSettings:
    """Collect settings that a caller names by `section.field`, as options of a job."""
    parsed = ParsedSettings()
    for key, value in sorted(options.items()):
        parsed.add(key, value, "option", f"option {key}")
    return parsed


def _first_of(section: str) -> str:
    return next(setting.environment for setting in all_settings() if setting.section == section)


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
        hint = (
            "the same name stands there twice: remove one of them"
            if twice
            else 'texts need quotes, as in bucket = "name"'
        )
        raise InvalidConfig(f"{path}: {line}: not TOML: {what or error}", hint=hint) from error
