"""Paths of BookKeeper in ZooKeeper: of ledgers, by their ids, and of registered bookies.

    layout = decode_layout(content_or_none, path=...)      # the LAYOUT node; None when it is missing
    layout.path(root, ledger_id)

Pulsar's own metadata driver neither writes nor reads LAYOUT: a missing one means hierarchical. WIRE.md, section 8.
"""

import re
from enum import StrEnum
from typing import Final

from offloaderd.core.errors import CorruptData, InvalidConfig, InvalidInput
from offloaderd.core.model import LEDGER_ID_MAX

ROOT_DEFAULT: Final = "/ledgers"
LAYOUT_VERSION: Final = b"2"
SHORT_ID_END: Final = 2**31 - 1
"""Below it, the hierarchical layout uses the short path, from it on the long one."""

_FACTORY = re.compile(r"([\w.$]+):([0-9]{1,9})")
_LEAF = "L"


class Layout(StrEnum):
    """The layout of ledgers' paths; the values are the factories' class names without package and ending."""

    HIERARCHICAL = "Hierarchical"
    LEGACY_HIERARCHICAL = "LegacyHierarchical"
    LONG_HIERARCHICAL = "LongHierarchical"
    FLAT = "Flat"

    def path(self, root: str, ledger_id: int) -> str:
        """Return the path of a ledger's node; raises InvalidInput for an id that this layout cannot hold."""
        if not 0 <= ledger_id <= LEDGER_ID_MAX:
            raise InvalidInput(f"ledger id {ledger_id} is out of range")
        cuts: tuple[int, ...]
        if self is Layout.LONG_HIERARCHICAL or (self is Layout.HIERARCHICAL and ledger_id >= SHORT_ID_END):
            digits, cuts = f"{ledger_id:019}", (3, 7, 11, 15)
        elif ledger_id > 9_999_999_999:
            raise InvalidInput(f"ledger id {ledger_id} has more digits than the {self} layout")
        else:
            digits, cuts = f"{ledger_id:010}", () if self is Layout.FLAT else (2, 6)
        parts = [digits[low:high] for low, high in zip((0, *cuts), (*cuts, None), strict=True)]
        parts[-1] = _LEAF + parts[-1]
        return "/".join((root.rstrip("/"), *parts))


def decode_layout(content: bytes | None, *, path: str) -> Layout:
    """Return the layout that the LAYOUT node names, hierarchical without one.

    Raises CorruptData for what is no layout, InvalidConfig for one whose ledgers are not in ZooKeeper.
    """
    if content is None:
        return Layout.HIERARCHICAL
    version, newline, rest = content.rstrip(b"\n").partition(b"\n")
    named = _FACTORY.fullmatch(rest.decode("ascii", errors="replace"))
    if version != LAYOUT_VERSION or not newline or named is None:
        raise CorruptData(key=path, offset=0, expected="2, a line end and FACTORY:VERSION", found=content[:200])
    name = named[1].rpartition(".")[2].removesuffix("LedgerManagerFactory")
    if name == "Pulsar":
        return Layout.HIERARCHICAL
    try:
        return Layout(name)
    except ValueError:
        raise InvalidConfig(
            f"{path} names the ledger manager {named[1]}, whose ledgers cannot be found in ZooKeeper",
            hint=f"offloaderd reads the layouts {', '.join(Layout)}",
        ) from None


def layout_path(root: str) -> str:
    """Return the path of the node that names the layout."""
    return f"{root.rstrip('/')}/LAYOUT"


def instance_path(root: str) -> str:
    """Return the path of the node with the id of this BookKeeper, which changes when it is initialised again."""
    return f"{root.rstrip('/')}/INSTANCEID"


def registration_paths(root: str, bookie_id: str) -> tuple[str, str]:
    """Return the paths of a writable and of a read-only bookie, which serves reads as well; raises InvalidInput.

    The id must have passed `registration.is_bookie_id`.
    """
    if "/" in bookie_id or not bookie_id:
        raise InvalidInput(f"{bookie_id!r} is no bookie id")
    available = f"{root.rstrip('/')}/available"
    return f"{available}/{bookie_id}", f"{available}/readonly/{bookie_id}"
