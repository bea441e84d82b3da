"""How new objects are stored: their storage class, and tags for the bill. Pure.

A class is one of the store's own words. Archives are refused: a reader would wait for hours, and the daemon reads back
what it has stored. The data object alone gets the class; index and manifest keep the bucket's own, because they are
small and often read, and the cheaper classes charge for 128 KiB at least and for each read. All three get the tags.

Tags are written `NAME=VALUE`, several with commas between them; `{tenant}`, `{namespace}` and `{cluster}` in a value
stand for those of the topic. Characters and limits are those that S3 and Azure have in common:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-tagging.html,
https://learn.microsoft.com/azure/storage/blobs/storage-manage-find-blobs (both read 2026-11).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, runtime_checkable

STORAGE_CLASS = r"([A-Za-z][A-Za-z0-9_-]{0,39})?"
"""A class, or empty for the bucket's own."""
STORAGE_CLASS_FORM = "a storage class of the store, as STANDARD_IA; empty for the bucket's own"

TAGS_MAX = 10
VALUE_CHARACTERS_MAX = 256
_TAG = r"[A-Za-z0-9 +./:=_-]"
_NAME = r"[A-Za-z0-9+./:_-][A-Za-z0-9 +./:_-]{0,126}"
_VALUE = rf"({_TAG}|\{{(tenant|namespace|cluster)\}}){{0,{VALUE_CHARACTERS_MAX}}}"
TAGS = rf"(\s*{_NAME}={_VALUE}(,\s*{_NAME}={_VALUE}){{0,{TAGS_MAX - 1}}})?"
"""Tags, or empty for none."""
TAGS_FORM = (
    f"up to {TAGS_MAX} of NAME=VALUE with commas between them, of letters, digits, blanks and + - . / : = _, where "
    "{tenant}, {namespace} and {cluster} in a value stand for the topic's"
)


@dataclass(frozen=True, slots=True)
class StoredAs:
    """Class and tags of a new object; empty: the bucket's own class, no tags."""

    storage_class: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def tags_alone(self) -> "StoredAs":
        """The same in the bucket's own class."""
        return replace(self, storage_class="")


PLAIN = StoredAs()


TAGS_HINT = (
    "give these credentials the right to set tags (s3:PutObjectTagging; in Azure blobs/tags/write, t in a SAS), or "
    "have the policy set none"
)


@runtime_checkable
class TagsRefused(Protocol):
    """A store that may not take tags, and stores objects without them then."""

    @property
    def tags_refused(self) -> str:
        """The error of the last tags; empty while they are taken."""


class Classes(NamedTuple):
    """The classes of a kind of store: those that can be read at once, and archives. `closed`: there are no others."""

    readable: tuple[str, ...]
    archives: tuple[str, ...] = ()
    closed: bool = False


CLASSES: Mapping[str, Classes] = {
    "aws": Classes(
        ("STANDARD", "INTELLIGENT_TIERING", "STANDARD_IA", "ONEZONE_IA", "GLACIER_IR", "REDUCED_REDUNDANCY"),
        ("GLACIER", "DEEP_ARCHIVE"),
        closed=True,
    ),
    "s3": Classes(("STANDARD",), ("GLACIER", "DEEP_ARCHIVE", "ARCHIVE", "COLD_ARCHIVE", "DEEP_COLD_ARCHIVE")),
    "azure": Classes(("Hot", "Cool", "Cold"), ("Archive",), closed=True),
    "gcs": Classes(("STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE"), closed=True),
    "filesystem": Classes((), closed=True),
}
"""By kind of service: `aws` is S3 itself, `s3` any other service with its protocol, whose words are its own.

Sources: https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-class-intro.html,
https://learn.microsoft.com/azure/storage/blobs/access-tiers-overview,
https://cloud.google.com/storage/docs/storage-classes (its ARCHIVE is read at once) (all read 2026-11).
"""


PLAIN_ONLY = frozenset({"gcs"})
"""Services of which this release sets neither class nor tags."""


def class_flaw(storage_class: str, service: str) -> str:
    """Return why a service of CLASSES cannot store segments in a class; empty if it can, or is unknown."""
    known = CLASSES.get(service)
    if not storage_class or known is None:
        return ""
    if storage_class.upper() in {one.upper() for one in known.archives}:
        return f"{storage_class} is an archive: its objects cannot be read before they are restored, which takes hours"
    if service in PLAIN_ONLY:
        return f"this release stores in the bucket's own class there ({service}): set that of the bucket"
    if known.closed and storage_class not in known.readable:
        words = f"it has {', '.join(known.readable)}" if known.readable else "it has no storage classes"
        return f"{storage_class} is no class of this kind of store ({service}): {words}"
    return ""


def tags_flaw(tags: str, service: str) -> str:
    """Return why a service cannot store these tags; empty if it can, or is unknown. `tags` match TAGS."""
    names = [name for name, _ in tag_pairs(tags)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        return f"{', '.join(twice)} is given twice: an object has one value of each tag"
    if tags and service in PLAIN_ONLY:
        return f"this release sets no tags there ({service})"
    return "a directory has no tags" if tags and service == "filesystem" else ""


def filled_tags(tags: str, **topic: str) -> dict[str, str]:
    """Return tags with the values of a topic (`tenant`, `namespace`, `cluster`) in place of their names.

    Characters that a tag cannot have become `_`, and a value is cut to its greatest length.
    """
    found = {}
    for name, value in tag_pairs(tags):
        whole = re.sub(r"\{(\w+)\}", lambda match: topic[match[1]], value)
        found[name] = re.sub(rf"(?!{_TAG}).", "_", whole, flags=re.DOTALL)[:VALUE_CHARACTERS_MAX]
    return found


def tag_pairs(tags: str) -> list[tuple[str, str]]:
    """Return names and values of tags as they are written; a value may have `=`."""
    parted = [one.strip().partition("=") for one in tags.split(",") if one.strip()]
    return [(name.strip(), value.strip()) for name, _, value in parted]
