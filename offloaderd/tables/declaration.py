"""Declarations: which topics become tables, where, and how. Pure.

A declaration names a topic, or all topics of a namespace; each topic, with all of its partitions, has a table of its
own, topics that come later too. It is one node of the metadata, and has a name of its own:

    orders      public/default/orders    -> table `orders` in namespace `shop` of catalogue `lake`
    everything  public/default/*         -> a table for each topic
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from hashlib import sha256
from typing import Any

from offloaderd.core.errors import CorruptData, InvalidInput, NewerRecord
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import Breadth, TopicPattern, partitioned_topic
from offloaderd.tables.layout import BUCKETS_MAX, BUCKETS_MIN, Layout, Partition

VERSION = 2
"""Version 1 had the history first; a declaration without the later fields is still written as one."""
INTERVAL_S_MIN, INTERVAL_S_MAX = 1.0, 31 * 86_400.0
KEEP_S_MIN = 3600.0
INT64_MAX = 2**63 - 1
COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names in Avro. Other ones mean something else in expressions of Spark, Iceberg or Delta Lake."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
PLACE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
SCHEMA_BYTES_MAX = 256 * 1024
"""Longest schema in a declaration: ZooKeeper takes a megabyte in a node."""
DEAD_LETTERS = "_dead_letters"
"""The end of the name of the table with a table's dead letters."""
_PLAIN = re.compile(r"[a-z0-9_]+")
_OTHERS = re.compile(r"[^a-z0-9_]")
FOLDER = re.compile(r"(file://(?=/))?[A-Za-z0-9_./+=@-]+")
FOLDER_TEXT = (
    "write a folder of the machines that Spark runs on, or a mount of theirs, with letters, digits and _./+=@- in its "
    "name; tables in a bucket need a catalogue"
)


class TableFormat(StrEnum):
    """The format of a table."""

    ICEBERG = "iceberg"
    DELTA = "delta"


class TableMode(StrEnum):
    """What a message does to its table."""

    APPEND = "append"
    """It adds a row."""
    UPSERT = "upsert"
    """It replaces the row of its key; one without a value deletes it."""


class History(StrEnum):
    """When a table gets what was offloaded before it was declared."""

    FIRST = "first"
    """Before everything else."""
    BESIDE = "beside"
    """Between steps with what is new, which begin with the newest segment of each topic."""


class OnError(StrEnum):
    """What becomes of a message that is no row of its table, and of entries that are lost."""

    FAIL = "fail"
    """The table stops before it."""
    SKIP = "skip"
    """It is left out, and counted."""
    DEAD_LETTER = "dead-letter"
    """It is a row of the table's dead letters, with its position, the reason and its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Tables of the topics of a pattern.

    `to` is CATALOGUE.NAMESPACE of pyiceberg's settings, or a folder (with a slash). `key`: with upsert, the columns
    that identify a row; without any, the message's key does. `schema`: the values' schema where there is no cluster
    to ask. `step_bytes`: bytes of segments that a table takes at a time. `upkeep_s`: time between two runs of upkeep, 0
    for none; `keep_s`: how long older versions of a table stay readable. `partition`, `buckets` and `sort`: see Layout;
    without a partition it is by day, with upsert none.
    """

    name: str
    topics: str
    to: str
    format: TableFormat = TableFormat.ICEBERG
    mode: TableMode = TableMode.APPEND
    key: tuple[str, ...] = ()
    on_error: OnError = OnError.DEAD_LETTER
    interval_s: float = 60.0
    step_bytes: int = 1024**3
    upkeep_s: float = 3600.0
    keep_s: float = 7 * 86_400.0
    schema: str = ""
    partition: Partition | None = None
    buckets: int = 0
    sort: tuple[str, ...] = ()
    history: History = History.FIRST
    created_ms: int = 0
    created_by: str = ""

    @property
    def layout(self) -> Layout:
        """How the rows of its tables lie in their files."""
        by_mode = Partition.NONE if self.mode is TableMode.UPSERT else Partition.DAY
        return Layout(partition=self.partition or by_mode, buckets=self.buckets, sort=self.sort)

    @property
    def pattern(self) -> TopicPattern:
        """The topics' pattern."""
        return TopicPattern.parse(self.topics)

    @property
    def in_folder(self) -> bool:
        """Whether the tables are in a folder, not in a catalogue that others know."""
        return "/" in self.to

    def shares_tables(self, other: "Declaration") -> bool:
        """Whether a topic would have one table by both."""
        mine, theirs = self.pattern, other.pattern
        topics = mine.topic == theirs.topic or mine.topic is None or theirs.topic is None
        places = {one.to.removeprefix("file://").rstrip("/") for one in (self, other)}
        return topics and mine.scope == theirs.scope and len(places) == 1 and self.in_folder == other.in_folder

    def flaws(self) -> list[str]:
        """Return all mistakes."""
        checks = [
            (bool(NAME.fullmatch(self.name)), f"name {self.name!r}: letters, digits, . _ - and 100 characters at most"),
            (self.mode is TableMode.UPSERT or not self.key, "key: only with mode upsert"),
            (
                self.mode is TableMode.APPEND or self.history is History.FIRST,
                f"history {self.history}: not with mode upsert, where a row of the history could bring back a key that "
                "was deleted since; leave it out, or take mode append",
            ),
            *(
                (
                    all(map(COLUMN.fullmatch, names)) and len(set(names)) == len(names),
                    f"{what} {','.join(names)!r}: names of columns with commas between, each once",
                )
                for what, names in (("key", self.key), ("sort", self.sort))
            ),
            (
                INTERVAL_S_MIN <= self.interval_s <= INTERVAL_S_MAX,
                f"interval {self.interval_s:.12g} s: {INTERVAL_S_MIN:g} s to {INTERVAL_S_MAX / 86_400:g} d",
            ),
            (self.upkeep_s >= 0, f"upkeep every {self.upkeep_s:g} s: 0 s (never) or more"),
            (self.keep_s >= KEEP_S_MIN, f"keep {self.keep_s:g} s: {KEEP_S_MIN:g} s at least, for queries that run"),
            (self.step_bytes > 0, f"step of {self.step_bytes} bytes: 1 at least"),
            (
                not self.schema or _is_json(self.schema),
                "schema: not JSON; give an Avro schema, or what `pulsar-admin schemas get` says",
            ),
            (
                len(json.dumps(self.schema)) <= SCHEMA_BYTES_MAX,
                f"schema of {len(json.dumps(self.schema))} bytes: {SCHEMA_BYTES_MAX} is the most",
            ),
        ]
        told = [said for holds, said in checks if not holds]
        return [*self._flaws_of_topics(), *self._flaws_of_place(), *self._flaws_of_layout(), *told]

    def _flaws_of_topics(self) -> list[str]:
        try:
            pattern = self.pattern
        except InvalidInput as error:
            return [f"topics: {error.message}"]
        if pattern.breadth not in {Breadth.TOPIC, Breadth.NAMESPACE}:
            return [f"topics {self.topics!r}: write TENANT/NAMESPACE/TOPIC or TENANT/NAMESPACE/*"]
        if pattern.topic is not None and partitioned_topic(pattern.topic) is not None:
            return [f"topics {self.topics!r}: all partitions are in one table, name the topic"]
        return []

    def _flaws_of_place(self) -> list[str]:
        if self.in_folder:
            return [] if FOLDER.fullmatch(self.to) else [f"to {self.to!r}: {FOLDER_TEXT}"]
        if self.format is TableFormat.DELTA:
            return [f"to {self.to!r}: tables of Delta Lake are in a folder, with a slash in it"]
        if not PLACE.fullmatch(self.to):
            return [f"to {self.to!r}: write CATALOGUE.NAMESPACE, or a folder with a slash in it"]
        return []

    def _flaws_of_layout(self) -> list[str]:
        if self.partition is Partition.BUCKET:
            return self._flaws_of_buckets()
        if self.buckets:
            return [f"buckets {self.buckets}: only with the partition {Partition.BUCKET}"]
        if self.mode is TableMode.APPEND:
            return []
        if self.format is TableFormat.DELTA:
            return ["sort: not with upsert in Delta Lake, whose library merges rows in an order of its own"] * bool(
                self.sort
            )
        if self.layout.partition is not Partition.NONE:
            return [f"partition {self.partition}: with upsert only in Delta Lake; write none, or leave it out"]
        return []

    def _flaws_of_buckets(self) -> list[str]:
        said = f"partition {self.layout.text}"
        if not BUCKETS_MIN <= self.buckets <= BUCKETS_MAX:
            return [f"{said}: {BUCKETS_MIN} to {BUCKETS_MAX} buckets"]
        if self.format is TableFormat.DELTA:
            return [
                f"{said}: only in Iceberg, as queries of Delta Lake know no hash of a key; write hour, day, month or "
                "none, and with append sort the rows by _key"
            ]
        if self.mode is TableMode.UPSERT:
            return [
                f"{said}: only with append, as pyiceberg replaces no rows in buckets; write none, or leave it out, and "
                "sort the rows by their key"
            ]
        return []

    def checked(self) -> "Declaration":
        """Return it if it is valid. Raises InvalidInput with all mistakes."""
        if flaws := self.flaws():
            raise InvalidInput("\n".join(flaws), hint="nothing was declared")
        return self


def encode(value: Declaration) -> bytes:
    """Return the node's content; an earlier release reads it, unless it would write another table by it."""
    found = asdict(value)
    if value.history is History.FIRST:
        del found["history"]
    version = VERSION if "history" in found else 1
    return json.dumps({"version": version, **found}, sort_keys=True).encode()


def decode(data: bytes, *, path: str) -> Declaration:
    """Read a node's content. Raises CorruptData, NewerRecord."""
    found = document(data, path=path, version=VERSION)
    try:
        known = {one.name: found[one.name] for one in fields(Declaration) if one.name in found}
        known["format"], known["mode"] = TableFormat(known["format"]), TableMode(known["mode"])
        known["on_error"], known["key"] = OnError(known["on_error"]), tuple(known["key"])
        known["history"] = History(known.get("history", History.FIRST))
        check_number(known.get("created_ms", 0))
        known["sort"] = tuple(known.get("sort", ()))  # those of earlier releases have no layout
        if (partition := known.get("partition")) is not None:
            known["partition"] = Partition(partition)
        return Declaration(**known).checked()
    except (InvalidInput, AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptData(key=path, offset=0, expected="a declaration of tables", found=error) from None


def document(data: bytes, *, path: str, version: int) -> Mapping[str, Any]:
    """Read a JSON object of a known version. Raises CorruptData, NewerRecord."""
    try:
        found = json.loads(data)
        given = found["version"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise CorruptData(key=path, offset=0, expected="a JSON object with its version", found=error) from None
    if not isinstance(given, int) or given < 1:
        raise CorruptData(key=path, offset=0, expected="a version", found=repr(given))
    if given > version:
        raise NewerRecord(path, found=given, known=version)
    return dict(found)


def check_number(number: object, *, whole: bool = True) -> None:
    """Raise TypeError unless a value is a number from 0 on that a daemon can say: one of 64 bits."""
    if not isinstance(number, int if whole else int | float) or not 0 <= number <= INT64_MAX:
        raise TypeError(f"{number!r} is no {'whole ' if whole else ''}number")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def table_of(topic: TopicName) -> TopicName:
    """Return the topic that has the table of this one: the partitioned topic of a partition, else itself."""
    return partitioned_topic(topic) or topic


def table_name(topic: TopicName) -> str:
    """Return the name of a topic's table: that of the topic, with _ for -.

    Of a name with other characters than small letters, digits, - and _, these become _, and a part of its hash follows.
    """
    name = topic.local.replace("-", "_")
    if _PLAIN.fullmatch(name) and not name.endswith(DEAD_LETTERS):
        return name
    return f"{_OTHERS.sub('_', name.lower())}_{sha256(topic.local.encode()).hexdigest()[:8]}"
