"""The settings of a command: those of a file and the environment, or those of a standalone."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from offloaderd.standalone import state

if TYPE_CHECKING:
    from offloaderd.daemon.settings import Settings

CONFIG = click.option(
    "--config",
    metavar="PATH",
    envvar="OFFLOADERD_CONFIG",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The settings file (TOML). [env: OFFLOADERD_CONFIG; default: none, the environment only]",
)
STANDALONE = click.option(
    "--standalone",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Work on the standalone with this data directory. [default: the one that runs, where no setting is given]",
)


def usual(config: Path | None) -> Path | None:
    """Return the directory of the standalone that runs, if no setting is given."""
    given = config is not None or any(name.upper().startswith("OFFLOADERD__") for name in os.environ)
    return None if given else state.found()


def settings_at(config: Path | None, standalone: Path | None) -> Settings:
    """Return the settings of a standalone, or as a daemon would load them. Raises InvalidConfig, NotFound."""
    from offloaderd.daemon.settings import load  # noqa: PLC0415 - --help need not wait for it
    from offloaderd.standalone.stack import settings_for  # noqa: PLC0415 - as above

    directory = standalone or usual(config)
    if directory is None:
        return load(config, os.environ)
    return settings_for(state.load(directory), directory, config, os.environ)


@asynccontextmanager
async def served(config: Path | None, standalone: Path | None) -> AsyncIterator[Settings]:
    """Yield the settings; the servers of a standalone that is not running run meanwhile, without its daemon.

    Raises InvalidConfig, NotFound (no standalone there), and what starting servers raises.
    """
    settings = settings_at(config, standalone)
    if standalone is None or state.running(standalone):
        yield settings
        return
    from offloaderd.core.clock import SystemClock  # noqa: PLC0415 - as above
    from offloaderd.standalone.stack import StackOptions, stack  # noqa: PLC0415

    async with stack(StackOptions(directory=standalone, config=config), os.environ, SystemClock()) as running:
        yield running.settings
