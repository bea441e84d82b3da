"""Names of the modules that log, and their possible levels; nothing here changes a level."""

from collections.abc import Iterable, Iterator
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
    """Parse lines of `MODULE LEVEL`, and skip those of `unknown_modules`. Raises InvalidInput for a wrong level."""
    found = {}
    for line in lines:
        module, _, level = line.partition(" ")
        name, exists = _resolved(module)
        checked_level(name, level.strip())
        if exists:
            found[name] = level.strip()
    return found


def unknown_modules(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield a message and a hint for each line whose module does not exist.

    Modules are moved and merged from release to release: a daemon starts whatever levels its settings have.
    """
    for line in lines:
        try:
            known_module(line.partition(" ")[0])
        except InvalidInput as error:
            yield f"log.levels: {error.message}, so this level changes nothing", error.hint


def known_module(name: str) -> str:
    """Return a module's full name, `topic.tailer` being short for `offloaderd.topic.tailer`. Raises InvalidInput."""
    full, exists = _resolved(name)
    if exists:
        return full
    modules = sorted(_modules())
    same_word = [one for one in modules if one.rpartition(".")[2] == name.rpartition(".")[2]]
    near = same_word or get_close_matches(name.removeprefix(f"{PACKAGE.name}."), [*modules, *LIBRARIES], 1)
    raise InvalidInput(
        f"there is no module {name!r} that logs",
        hint=f"did you mean {' or '.join(near)}?"
        if near
        else f"{PACKAGE.name}.PACKAGE.MODULE, or one of {', '.join(LIBRARIES)}",
    )


def _resolved(name: str) -> tuple[str, bool]:
    """Return the full name, by the present name of its package, and whether that module exists."""
    parts = name.split(".")
    words_only = all(part.isidentifier() for part in parts)
    if parts[0] in LIBRARIES:
        return name, words_only
    parts = parts if parts[0] == PACKAGE.name else [PACKAGE.name, *parts]
    for count in (3, 2):
        if (moved := LOG_MODULES.get(".".join(parts[1:count]))) is not None:
            parts = [PACKAGE.name, *moved.split("."), *parts[count:]]
            break
    path = PACKAGE.parent.joinpath(*parts)
    return ".".join(parts), words_only and (path.is_dir() or path.with_suffix(".py").is_file())


def _modules() -> Iterator[str]:
    """Yield the short names of all packages and modules."""
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def checked_level(module: str, level: str) -> None:
    """Raise InvalidInput for an unknown level, or one at which a library would log secrets."""
    if level not in LEVELS:
        raise InvalidInput(f"{level!r} is no level", hint="one of " + ", ".join(LEVELS))
    if level == "debug" and module.split(".", maxsplit=1)[0] in SIGNERS:
        raise InvalidInput(f"{module} writes signed headers at debug", hint="info is the lowest for it")
    if module == AUDIT:
        raise InvalidInput("the audit log is written whatever the level", hint="name another module")
