"""Contexts: daemons by name, each with its address, TLS files and token file, in one TOML file of this user.

    current = "prod"

    [contexts.prod]
    address = "offload.prod.example:7650"
    tls_ca = "/etc/offloaderd/ca.crt"
    token_file = "/run/secrets/offloaderd"

It holds no secret: a token is in a file of its own, or in the environment.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from offloaderd.client import Trust, checked_address
from offloaderd.core.errors import InvalidConfig, InvalidInput, NotFound, OffloaderError
from offloaderd.standalone import state

FILE_NAME = "contexts.toml"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A daemon: where it is, and which files are used with it."""

    address: str
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = None

    def trusted(self, given: Trust) -> Trust:
        """Return its trust; what is given goes over it."""
        return replace(
            given,
            tls=given.tls or self.tls,
            ca_file=given.ca_file or self.tls_ca,
            cert_file=given.cert_file or self.tls_cert,
            key_file=given.key_file or self.tls_key,
            token_file=given.token_file if given.has_token else self.token_file,
        )

    def document(self) -> dict[str, object]:
        """Return its values, as JSON has them."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts of a user, and the name of the one in use."""

    current: str | None = None
    named: Mapping[str, Context] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Context:
        """Return a context. Raises NotFound."""
        if name not in self.named:
            known = ", ".join(self.named) or "none"
            raise NotFound(f"no context {name!r}", hint=f"known: {known}; make it: offloadctl context set {name} ...")
        return self.named[name]

    def chosen(self, name: str | None) -> Context | None:
        """Return the context of a name, without a name the one in use, None for none. Raises NotFound."""
        name = name if name is not None else self.current
        return None if name is None else self[name]


def path() -> Path:
    """Return the path of the file."""
    return state.user_directory() / FILE_NAME


def load() -> Contexts:
    """Read the contexts; none without a file. Raises InvalidConfig for a file that cannot be used."""
    try:
        return _parsed(tomllib.loads(path().read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise InvalidConfig(f"cannot read {path()}: {error.strerror}") from None
    except (ValueError, InvalidInput) as error:
        raise InvalidConfig(f"{path()}: {error}", hint="repair it, or delete it and make contexts again") from None


def _parsed(text: Mapping[str, object]) -> Contexts:
    """Return contexts. Raises ValueError, InvalidInput."""
    if unknown := text.keys() - {"current", "contexts"}:
        raise ValueError(f"{min(unknown)!r} is unknown: there are `current` and tables [contexts.NAME]")
    tables = text.get("contexts", {})
    if not isinstance(tables, dict) or not all(isinstance(values, dict) for values in tables.values()):
        raise ValueError("contexts are tables [contexts.NAME]")
    current = text.get("current")
    if current is not None and (not isinstance(current, str) or current not in tables):
        raise ValueError(f"current = {current!r} is no context of the file")
    return Contexts(current, {named(name): _context(name, values) for name, values in tables.items()})


def _context(name: str, values: Mapping[str, object]) -> Context:
    known = {one.name for one in fields(Context)}
    if unknown := values.keys() - known:
        hint = "; a token has a file of its own, named by token_file" if "token" in unknown else ""
        raise ValueError(f"contexts.{name}: {min(unknown)!r} is unknown: {', '.join(sorted(known))}{hint}")
    for key, value in values.items():
        kind, text = (bool, "neither true nor false") if key == "tls" else (str, "no text")
        if not isinstance(value, kind):
            raise InvalidInput(f"contexts.{name}.{key} = {value!r} is {text}")
    checked_address(str(values.get("address", "")))
    files = {key: Path(str(value)) for key, value in values.items() if key not in {"address", "tls"}}
    return Context(address=str(values["address"]), tls=values.get("tls") is True, **files)


def named(name: str) -> str:
    """Return a name for a context. Raises InvalidInput."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} is no name of a context", hint="letters, digits, - _ and .")
    return name


def save(contexts: Contexts) -> None:
    """Write the file, for this user only; whole or not at all. Raises OffloaderError."""
    lines = [f"current = {json.dumps(contexts.current)}\n"] if contexts.current is not None else []
    for name, context in contexts.named.items():
        values = {key: value for key, value in context.document().items() if value not in {None, False}}
        texts = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
        lines.append("\n".join([f'[contexts."{name}"]', *texts, ""]))
    try:
        path().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        state.write_private(path(), "\n".join(lines))
    except OSError as error:
        raise state.directory_error(error, path().parent) from error


def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names that begin so."""
    try:
        return [CompletionItem(name) for name in load().named if name.startswith(incomplete)]
    except OffloaderError:
        return []
