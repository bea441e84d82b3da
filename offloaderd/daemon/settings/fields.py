"""Descriptions of the settings: key, type, default, bounds, and whether it is secret.

They are read from the sections, so that error messages, the generated settings file and the tables of the
documentation always agree with the checks.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from offloaderd.core.section import Section, Shape, SizeMark
from offloaderd.core.units import format_bytes
from offloaderd.daemon.settings.sections import Settings

ENVIRONMENT_PREFIX = "OFFLOADERD__"
MASK = "********"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: `key` is `section.field`; `default` and `example` are written as in the settings file."""

    section: str
    name: str
    default: str
    example: str
    allowed: str
    words: tuple[str, ...]
    is_size: bool
    is_secret: bool
    description: str

    @property
    def key(self) -> str:
        """`section.field`."""
        return f"{self.section}.{self.name}"

    @property
    def environment(self) -> str:
        """Name of the environment variable that sets it."""
        return environment_name(self.key)


def environment_name(key: str) -> str:
    """Name of the environment variable for `section.field`."""
    return ENVIRONMENT_PREFIX + key.replace(".", "__").upper()


def section_types() -> dict[str, type[Section]]:
    """Sections by name, in the order of the settings file."""
    kinds = ((name, info.annotation) for name, info in Settings.model_fields.items())
    return {name: kind for name, kind in kinds if isinstance(kind, type) and issubclass(kind, Section)}


def all_settings() -> Iterator[Setting]:
    """Yield every setting, section by section."""
    for section, kind in section_types().items():
        for name, info in kind.model_fields.items():
            yield _setting(section, name, info)


def literal(value: object, *, is_size: bool = False) -> str:
    """Return a value as in TOML; `not set` for None, which TOML does not have."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and is_size:
        return f'"{format_bytes(value)}"' if format_bytes(value).endswith("B") else str(value)
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(literal, value))}]"
    return json.dumps(printable(str(value)), ensure_ascii=False)


def shown(setting: Setting, value: object) -> str:
    """Return a value as in TOML, a secret masked."""
    return MASK if isinstance(value, SecretStr) else literal(value, is_size=setting.is_size)


def printable(text: str) -> str:
    """Return the text with bytes that are not UTF-8 (from the environment) as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _setting(section: str, name: str, info: FieldInfo) -> Setting:
    words = _words(info.annotation)
    is_size = any(isinstance(mark, SizeMark) for mark in info.metadata)
    is_secret = SecretStr in get_args(info.annotation)
    default = literal(info.default, is_size=is_size)
    return Setting(
        section=section,
        name=name,
        default=default,
        example=literal(info.examples[0]) if info.examples else default,
        allowed=_allowed(info, words, is_size=is_size),
        words=words,
        is_size=is_size,
        is_secret=is_secret,
        description=" ".join((info.description or "").split()),
    )


def _words(annotation: object) -> tuple[str, ...]:
    if get_origin(annotation) is Literal:
        return tuple(map(str, get_args(annotation)))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(str(member) for member in annotation)
    return ()


def _allowed(info: FieldInfo, words: tuple[str, ...], *, is_size: bool) -> str:
    """Return the allowed values as text, from the marks that are checked."""
    for mark in info.metadata:
        if isinstance(mark, Shape):
            return mark.text
    if words:
        return "one of " + ", ".join(words)
    if info.annotation is bool:
        return "true or false"
    show = format_bytes if is_size else (lambda number: f"{number:,}".replace(",", "_"))
    bounds = {name: getattr(mark, name) for mark in info.metadata for name in ("ge", "gt", "le") if hasattr(mark, name)}
    low = show(bounds["ge"]) if "ge" in bounds else f"more than {show(bounds['gt'])}" if "gt" in bounds else ""
    high = show(bounds["le"]) if "le" in bounds else ""
    if low and high:
        return f"{low} to {high}"
    if low:
        return low if low.startswith("more") else f"{low} or more"
    return f"{high} or less" if high else ""


def as_toml(settings: Settings) -> str:
    """Return a settings file with the values that are no defaults; secrets are not masked."""
    lines: list[str] = []
    for section, kind in section_types().items():
        found = [
            f"{name} = {_written(value)}"
            for name, info in kind.model_fields.items()
            if (value := getattr(getattr(settings, section), name)) != info.get_default(call_default_factory=True)
        ]
        lines += [f"[{section}]", *found, ""] if found else []
    return "\n".join(lines)


def _written(value: object) -> str:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None:
        return '""'
    return repr(value) if isinstance(value, float) else literal(value)
