"""Which modules log, and which levels they may have; nothing here changes any."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from offloaderd.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

HOUSE = Path(__file__).parent
LEVELS = ("debug", "info", "warning", "error")
LIBRARIES = ("aiobotocore", "aiohttp", "asyncio", "botocore", "grpc", "kazoo", "urllib3")
SIGNERS = ("aiobotocore", "botocore")
AUDIT = "offloaderd.audit"
"""Logger of calls that change something or were refused; it is written whatever the level."""


def parsed_levels(lines: Iterable[str]) -> dict[str, str]:
    """Read lines of `MODULE LEVEL`. Raises InvalidInput for one that cannot be."""
    found = {}
    for line in lines:
        module, _, level = line.partition(" ")
        name = known_module(module)
        checked_level(name, level.strip())
        found[name] = level.strip()
    return found


def known_module(name: str) -> str:
    """Return a module's full name, `offload` being short for `offloaderd.offload`. Raises InvalidInput."""
    parts = name.split(".")
    if parts[0] in LIBRARIES and all(part.isidentifier() for part in parts):
        return name
    parts = parts if parts[0] == HOUSE.name else [HOUSE.name, *parts]
    path = HOUSE.parent.joinpath(*parts)
    if all(part.isidentifier() for part in parts) and (path.is_dir() or path.with_suffix(".py").is_file()):
        return ".".join(parts)
    below = sorted(one.stem for one in HOUSE.iterdir() if (one.suffix == ".py" or one.is_dir()) and one.stem[0] != "_")
    near = get_close_matches(name.removeprefix(f"{HOUSE.name}."), [*below, *LIBRARIES], 1)
    raise InvalidInput(
        f"there is no module {name!r} that logs",
        hint=f"did you mean {near[0]}?" if near else f"{HOUSE.name}.PACKAGE.MODULE, or one of {', '.join(LIBRARIES)}",
    )


def checked_level(module: str, level: str) -> None:
    """Raise InvalidInput for what is no level, or one at which a library would write secrets."""
    if level not in LEVELS:
        raise InvalidInput(f"{level!r} is no level", hint="one of " + ", ".join(LEVELS))
    if level == "debug" and module.split(".", maxsplit=1)[0] in SIGNERS:
        raise InvalidInput(f"{module} writes signed headers at debug", hint="info is the lowest for it")
    if module == AUDIT:
        raise InvalidInput("the audit log is written whatever the level", hint="name another module")
