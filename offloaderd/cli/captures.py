"""The capture that a command uses: the option, and how it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from offloaderd.capture import storage
from offloaderd.capture.storage import NEWEST
from offloaderd.core.errors import CorruptData
from offloaderd.daemon.stores import sites

if TYPE_CHECKING:
    from offloaderd.capture.records import Capture
    from offloaderd.daemon.settings import Settings
    from offloaderd.objects.port import ObjectReader

NO_CAPTURE = "none"
CAPTURE = click.option(
    "--capture",
    metavar="NAME",
    default=NEWEST,
    show_default=True,
    help="What topics need besides their entries comes out of this capture of the bucket (offloadctl metadata list). "
    f'"{NO_CAPTURE}": out of none.',
)


async def chosen(objects: ObjectReader, settings: Settings, name: str) -> Capture | None:
    """Return a capture of the bucket; None if none is wanted, or there is none and the newest is wanted.

    Raises NotFound for a name that there is not, CorruptData, and as the store does.
    """
    if name == NO_CAPTURE:
        return None
    site = sites(settings)[0]
    try:
        if name != NEWEST:
            return (await storage.read(objects, site, name))[1]
        newest = await storage.find(objects, site)
        return await storage.load(objects, site, newest) if newest is not None else None
    except CorruptData as error:
        error.hint = f"name another one with --capture, or {NO_CAPTURE}"
        raise
