"""Uploads in parts on Google Cloud Storage: each part is an object, and completing composes them (decision 0052).

    .offloaderd-uploads/<key>/<upload id>/upload         the upload, from its creation to its end; has the metadata
    .offloaderd-uploads/<key>/<upload id>/<part number>  a part, five digits
    .offloaderd-uploads/<key>/<upload id>/join-<n>-<m>   32 of them as one, where there are more than 32

Parts survive whoever sends them, are listed with their MD5, and take no part in other listings. An object is composed
from exact generations of its parts, so a part that is replaced meanwhile is refused. The first object of an upload is
deleted before its parts: without it nothing of the upload counts, and what a crash leaves of its parts is listed as an
open upload, for the garbage collection.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offloaderd.objects.port import PartInfo, UploadInfo

ROOT = ".offloaderd-uploads/"
"""Begin of the keys of all that belongs to uploads."""
SOURCES_MAX = 32
"""Google's limit on the objects that one request composes; composed objects may be composed again, without a limit."""
_NAME = re.compile(
    re.escape(ROOT) + r"(?P<key>.+)/(?P<upload_id>[0-9a-f]{32})/(?:upload|(?P<number>\d{5})|join-\d-\d{3})", re.DOTALL
)
_FIRST = "upload"


def folder(key: str, upload_id: str) -> str:
    """Return the begin of the keys of one upload."""
    return f"{ROOT}{key}/{upload_id}/"


def first_of(key: str, upload_id: str) -> str:
    """Return the key of the object that is the upload."""
    return folder(key, upload_id) + _FIRST


def part_of(key: str, upload_id: str, part_number: int) -> str:
    """Return the key of a part."""
    return f"{folder(key, upload_id)}{part_number:05}"


def join_of(key: str, upload_id: str, level: int, number: int) -> str:
    """Return the key of some parts that were composed; level 1 is of parts, level 2 of those."""
    return f"{folder(key, upload_id)}join-{level}-{number:03}"


def is_part(name: str) -> bool:
    """Return whether an object is a part of an upload."""
    matched = _NAME.fullmatch(name)
    return matched is not None and matched["number"] is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One object of an upload, in the generation that was listed."""

    name: str
    generation: str
    size_bytes: int

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> "Stored":
        """Return the object of the service's description."""
        return cls(
            name=described["name"], generation=str(described["generation"]), size_bytes=int(described.get("size", 0))
        )


@dataclass(slots=True, kw_only=True)
class Upload:
    """Everything of one upload. `metadata` is None if its first object does not exist: then it has ended."""

    metadata: dict[str, str] | None = None
    objects: list[Stored] = field(default_factory=list)
    parts: dict[int, tuple[PartInfo, Stored]] = field(default_factory=dict)

    def add(self, described: Mapping[str, Any], etag: str) -> None:
        """Take up one listed object."""
        stored = Stored.of(described)
        matched = _NAME.fullmatch(stored.name)
        if matched is None:
            return
        self.objects.append(stored)
        if (number := matched["number"]) is not None:
            info = PartInfo(part_number=int(number), etag=etag, size_bytes=stored.size_bytes)
            self.parts[info.part_number] = info, stored
        elif stored.name.endswith(f"/{_FIRST}"):
            self.metadata = dict(described.get("metadata", {}))

    @property
    def in_order_of_deletion(self) -> tuple[Sequence[Stored], Sequence[Stored]]:
        """The first object, which ends the upload, and all others."""
        first = [one for one in self.objects if one.name.endswith(f"/{_FIRST}")]
        return first, [one for one in self.objects if one not in first]


async def open_uploads(
    listed: AsyncIterator[Mapping[str, Any]], prefix: str, time_ms: Callable[[str], int]
) -> list[UploadInfo]:
    """Return the uploads that any of these objects belong to, in order of key and time."""
    begun: dict[tuple[str, str], int] = {}
    async for described in listed:
        matched = _NAME.fullmatch(described["name"])
        if matched is not None and matched["key"].startswith(prefix):
            one = matched["key"], matched["upload_id"]
            at_ms = time_ms(described["timeCreated"])
            begun[one] = min(begun.get(one, at_ms), at_ms)
    found = [UploadInfo(key=key, upload_id=name, initiated_ms=at_ms) for (key, name), at_ms in begun.items()]
    return sorted(found, key=lambda upload: (upload.key, upload.initiated_ms, upload.upload_id))


def grouped(sources: Sequence[Stored]) -> list[Sequence[Stored]]:
    """Return consecutive sources in groups that one request can compose."""
    return [sources[begin : begin + SOURCES_MAX] for begin in range(0, len(sources), SOURCES_MAX)]
