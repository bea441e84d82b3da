"""Settings as a file that reads as them: for a daemon whose settings a program chose, and commands beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import SecretStr

from offloaderd.daemon.settings.fields import literal, section_types

if TYPE_CHECKING:
    from offloaderd.daemon.settings.sections.settings import Settings


def as_toml(settings: Settings) -> str:
    """Return a settings file with what is not at its default, secrets in the clear: keep it from others."""
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
