"""Names of the modules that log, and their possible levels; nothing here changes a level."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from offloaderd.core.errors import InvalidInput
from offloaderd.core.renamed import LOG_MODULES

PACKAGE = Path(__file__).parents[2]
LEVELS = ("debug", "info", "warning", "error")
LIBRARIES = ("aiobotocore", "aiohttp", "asyncio", "botocore", "grpc", "kazoo", "urllib3")
SIGNERS = ("aiobotocore", "botocore")
AUDIT = "offloaderd.audit"
"""Logger of calls that change something or were refused; it is written at every level."""


def parsed_levels(lines: Iterable[str]) -> dict[str, str]:
    """Parse lines of `MODULE LEVEL`. Raises InvalidInput."""
    found = {}
    for line in lines:
        module, _, level = line.partition(" ")
        name = known_module(module)
        checked_level(name, level.strip())
        found[name] = level.strip()
    return found


def known_module(name: str) -> str:
    """Return a module's full name, `topic.tailer` being short for `offloaderd.topic.tailer`. Raises InvalidInput."""
    parts = name.split(".")
    if parts[0] in LIBRARIES and all(part.isidentifier() for part in parts):
        return name
    parts = parts if parts[0] == PACKAGE.name else [PACKAGE.name, *parts]
    parts = [PACKAGE.name, *LOG_MODULES.get(parts[1], parts[1]).split("."), *parts[2:]] if len(parts) > 1 else parts
    path = PACKAGE.parent.joinpath(*parts)
    if all(part.isidentifier() for part in parts) and (path.is_dir() or path.with_suffix(".py").is_file()):
        return ".".join(parts)
    below = sorted(
        one.stem for one in PACKAGE.iterdir() if (one.suffix == ".py" or one.is_dir()) and one.stem[0] != "_"
    )
    near = get_close_matches(name.removeprefix(f"{PACKAGE.name}."), [*below, *LIBRARIES], 1)
    raise InvalidInput(
        f"there is no module {name!r} that logs",
        hint=f"did you mean {near[0]}?" if near else f"{PACKAGE.name}.PACKAGE.MODULE, or one of {', '.join(LIBRARIES)}",
    )


def checked_level(module: str, level: str) -> None:
    """Raise InvalidInput for an unknown level, or one at which a library would log secrets."""
    if level not in LEVELS:
        raise InvalidInput(f"{level!r} is no level", hint="one of " + ", ".join(LEVELS))
    if level == "debug" and module.split(".", maxsplit=1)[0] in SIGNERS:
        raise InvalidInput(f"{module} writes signed headers at debug", hint="info is the lowest for it")
    if module == AUDIT:
        raise InvalidInput("the audit log is written whatever the level", hint="name another module")
