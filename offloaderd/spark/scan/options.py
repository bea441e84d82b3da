"""The options of `format("offload")`: what they may say, read in one go, with every mistake told at once.

Options with a dot are settings of the daemon by their names (`objects.bucket`, `metadata.servers`), over those of the
environment and of the file that `config` names. All others are the source's own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from offloaderd.core.errors import InvalidConfig, InvalidInput
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.core.read_options import Transactions
from offloaderd.core.units import parse_bytes
from offloaderd.daemon.settings import Settings, check
from offloaderd.spark.scan.origin import Metadata, packed
from offloaderd.spark.scan.positions import parsed
from offloaderd.spark.scan.query import Wanted, to_ms
from offloaderd.spark.scan.schema import checked_schema, full_schema
from offloaderd.spark.scan.share import EVERYTHING, Condition, Task
from offloaderd.spark.values.decode import ValueDecoder
from offloaderd.spark.values.schema import ValueSchema, read_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

T = TypeVar("T")

MIB = 1024 * 1024
PARTITION_BYTES = 64 * MIB
"""What one task reads: some seconds of work, and a thousand tasks for 64 GiB."""


class Mode(StrEnum):
    """What becomes of a query when entries cannot be read, and `skip` does not name the condition."""

    FAIL = "fail"
    SKIP = "skip"
    """Whatever the condition, a row takes their place that says how many they are, and why."""


class Start(StrEnum):
    """Where a stream begins that names no position."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a query asked for. `start` is where a stream begins without `wanted.first`, `step` what one repeats."""

    settings: Settings
    topic: TopicPattern
    wanted: Wanted = field(default_factory=Wanted)
    messages: bool = False
    transactions: Transactions = Transactions.COMMITTED
    values: ValueSchema | None = None
    mode: Mode = Mode.FAIL
    skip: frozenset[Condition] = frozenset()
    metadata: Metadata = Metadata.ZOOKEEPER
    partition_bytes: int = PARTITION_BYTES
    start: Start = Start.EARLIEST
    trigger_bytes: int | None = None
    step: tuple[dict[str, str], dict[str, str]] | None = None
    without: tuple[TopicPattern, ...] = ()

    def leaves_out(self, topic: TopicName) -> bool:
        """Whether a topic is left out, although the pattern takes it in."""
        return any(one.matches(topic) for one in self.without)

    @property
    def skipped(self) -> frozenset[Condition]:
        """What is left out and counted, instead of ending the query."""
        return EVERYTHING if self.mode is Mode.SKIP else self.skip

    @property
    def skips(self) -> bool:
        """Whether anything is left out."""
        return bool(self.skipped)

    @property
    def columns(self) -> StructType:
        """All columns that a query can have."""
        everything = self.transactions is Transactions.ALL
        return full_schema(messages=self.messages, skips=self.skips, values=self.values, transactions=everything)

    @property
    def holds_back(self) -> bool:
        """Whether a query ends where consumers are given nothing yet; the range of a step was chosen so."""
        return self.messages and self.transactions is Transactions.COMMITTED and self.step is None

    def task(self, schema: StructType, *, step: bool = False) -> Task:
        """Return what tasks are told, for the columns that a query gave. Raises InvalidConfig for others.

        `step`: the query is a stream, of which each part is read once.
        """
        return Task(
            objects=self.settings.objects,
            schema=checked_schema(schema, self.columns),
            messages=self.messages,
            skip=self.skipped,
            values=self.values,
            transactions=self.transactions,
            step=step or self.step is not None,
            origin=packed(self.settings, self.metadata),
        )


HELP: dict[str, str] = {
    "topic": "a topic, or a pattern: TENANT/NAMESPACE/TOPIC, TENANT/NAMESPACE/*, TENANT/*, re:EXPRESSION",
    "path": "the same, as load() gives it",
    "without": "topics of the pattern that are left out, separated by commas: TENANT/NAMESPACE/TOPIC",
    "messages": "true: a row for each message instead of each entry",
    "transactions": "with messages=true: committed, what consumers are given; or all, with what became of each",
    "schema": "with messages=true: what values are: an Avro schema, what `pulsar-admin schemas get` says, or a file",
    "encoding": "avro or json: how values are written, where the schema does not say it",
    "start": "LEDGER:ENTRY, the first entry; for a stream also earliest or latest",
    "end": "LEDGER:ENTRY, the last entry, inclusive",
    "start_time": "only entries written then or later: 2026-11-21T10:00:00Z, or milliseconds since 1970",
    "end_time": "only entries written before then",
    "mode": "fail, or skip: whatever cannot be given is left out, counted in a row of its own",
    "skip": "what alone is left out and counted, with commas: losses, retention, damage, malformed, unfinished",
    "metadata": "zookeeper, or bucket: the map is made from the manifests, without any ZooKeeper",
    "partition_bytes": "about what one task reads, 64MiB unless it is said",
    "max_bytes_per_trigger": "about what one step of a stream reads; no limit unless it is said",
    "offsets": '{"start": {TOPIC: POSITION}, "end": {...}}: what lies behind one offset of a stream, up to another',
    "config": "the settings' file, read where the driver runs",
}


SPELLINGS = {name.replace("_", ""): name for name in HELP}
"""Spark's own options are written `maxBytesPerTrigger`, and Spark gives all names in small letters."""

ELSEWHERE = {
    "subscribe": "topic",
    "subscribepattern": "topic=re:EXPRESSION",
    "startingoffsets": "start",
    "startingtimestamp": "start_time",
    "endingoffsets": "end",
    "endingtimestamp": "end_time",
    "failondataloss": "skip=losses,retention",
    "maxoffsetspertrigger": "max_bytes_per_trigger",
    "maxfilespertrigger": "max_bytes_per_trigger",
}
"""What options of Spark's own sources are here, which have other values."""


def parse(options: Mapping[str, str], *, environ: Mapping[str, str] | None = None) -> SourceOptions:
    """Read the options of a query. Raises InvalidConfig with a line for each mistake."""
    return _Reading(options, os.environ if environ is None else environ).done()


class _Reading:
    """One reading; goes on after mistakes, to find all of them."""

    def __init__(self, options: Mapping[str, str], environ: Mapping[str, str]) -> None:
        given = {name.lower(): str(value) for name, value in options.items()}
        self._settings = {name: value for name, value in given.items() if "." in name}
        self._environ = environ
        self._own: dict[str, str] = {}
        self._mistakes: list[str] = []
        for name in given.keys() - self._settings.keys():
            known = SPELLINGS.get(name.replace("_", ""), name)
            if known in self._own:
                self._mistakes.append(f"{known}: it is given in two spellings, say it once")
            self._own[known] = given[name]

    def done(self) -> SourceOptions:
        """Return the options, or raise all that is wrong."""
        for name in self._own.keys() - HELP.keys():
            close = [ELSEWHERE[name]] if name in ELSEWHERE else get_close_matches(name, HELP, 1)
            self._mistakes.append(f"{name}: no such option" + (f"; did you mean {close[0]}?" if close else ""))
        settings = self._checked_settings()
        topic = self._topic()
        mode = self._word("mode", Mode, Mode.FAIL)
        skip = self._value("skip", conditions)
        if skip and mode is Mode.SKIP:
            self._mistakes.append("mode, skip: mode=skip leaves out everything, say one of the two")
        metadata = self._word("metadata", Metadata, Metadata.ZOOKEEPER)
        start = self._own.get("start", "").strip().lower()
        word = Start(start) if start in set(Start) else Start.EARLIEST
        first = None if start in set(Start) else self._value("start", Position.parse)
        last = self._value("end", Position.parse)
        since, until = self._value("start_time", moment), self._value("end_time", moment)
        if first is not None and last is not None and first > last:
            self._mistakes.append(f"start, end: the range {first}..{last} is reversed")
        if since is not None and until is not None and since >= until:
            self._mistakes.append("start_time, end_time: the range is empty or reversed")
        messages = self._value("messages", truth)
        values = self._schema(messages=bool(messages))
        transactions = self._word("transactions", Transactions, Transactions.COMMITTED)
        if "transactions" in self._own and not messages:
            self._mistakes.append("transactions: only with messages=true, entries are given whatever they are in")
        without = self._value("without", lambda text: tuple(TopicPattern.parse(one.strip()) for one in text.split(",")))
        step = self._value("offsets", offsets)
        partition_bytes, trigger_bytes = self._size("partition_bytes"), self._size("max_bytes_per_trigger")
        if self._mistakes or settings is None or topic is None:
            self._fail()
        return SourceOptions(
            settings=settings,
            topic=topic,
            wanted=Wanted(first=first, last=last, since_ms=since, until_ms=until),
            messages=bool(messages),
            transactions=transactions,
            values=values,
            mode=mode,
            skip=skip or frozenset(),
            metadata=metadata,
            partition_bytes=partition_bytes or PARTITION_BYTES,
            start=word,
            trigger_bytes=trigger_bytes,
            step=step,
            without=without or (),
        )

    def _fail(self) -> NoReturn:
        count = len(self._mistakes)
        head = "an option is wrong" if count == 1 else f"{count} options are wrong"
        raise InvalidConfig("\n  ".join([f"{head}:", *self._mistakes]), hint="docs/spark.md describes each option")

    def _checked_settings(self) -> Settings | None:
        """Return the settings that say where bucket and ZooKeeper are; a bucket alone is no mistake."""
        path = self._own.get("config")
        try:
            report = check(Path(path) if path else None, self._environ, self._settings)
        except InvalidConfig as error:
            self._mistakes.append(f"config: {error.message}")
            return None
        self._mistakes += report.mistakes
        return report.settings

    def _topic(self) -> TopicPattern | None:
        given = {name: self._own[name] for name in ("topic", "path") if name in self._own}
        if len(given) != 1:
            said = "say it once: as an option or to load()" if given else HELP["topic"]
            self._mistakes.append(f"topic: {said}")
            return None
        return self._value(next(iter(given)), TopicPattern.parse)

    def _schema(self, *, messages: bool) -> ValueSchema | None:
        """Return what values are; a schema that Spark has no type for is a mistake, as is one without messages."""
        given = [name for name in ("schema", "encoding") if name in self._own]
        if given and not messages:
            self._mistakes.append(f"{', '.join(given)}: only with messages=true, entries have no value")
        if "schema" not in self._own:
            if given:
                self._mistakes.append(f"encoding: of what? schema: {HELP['schema']}")
            return None
        try:
            found = read_schema(self._own["schema"], self._own.get("encoding"))
            ValueDecoder(found)
        except InvalidInput as error:
            self._mistakes.append(f"schema = {self._own['schema'][:80]!r}: {error.message}")
            return None
        return found

    def _word(self, name: str, words: type[T], default: T) -> T:
        found = self._value(name, lambda text: words(text.strip().lower()))  # type: ignore[call-arg] # an enum's call
        return default if found is None else found

    def _size(self, name: str) -> int | None:
        size = self._value(name, parse_bytes)
        if size is not None and size < 1:
            self._mistakes.append(f"{name} = {size}: at least one byte")
        return size

    def _value(self, name: str, read: Callable[[str], T]) -> T | None:
        """Return an option's value, None when it was not given or is wrong."""
        text = self._own.get(name)
        if text is None:
            return None
        try:
            return read(text)
        except (InvalidInput, ValueError) as error:
            why = (
                f": {error.message}" if isinstance(error, InvalidInput) and name in {"topic", "path", "without"} else ""
            )
            self._mistakes.append(f"{name} = {text[:80]!r}{why}; allowed: {HELP[name]}")
            return None


def truth(text: str) -> bool:
    """Read true or false. Raises ValueError."""
    words = {"true": True, "false": False}
    if (word := text.strip().lower()) not in words:
        raise ValueError(text)
    return words[word]


def conditions(text: str) -> frozenset[Condition]:
    """Read names of conditions with commas between them. Raises ValueError."""
    return frozenset(Condition(word.strip().lower()) for word in text.split(",") if word.strip())


def offsets(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Read two offsets as JSON. Raises ValueError, InvalidInput."""
    found = json.loads(text)
    if not isinstance(found, dict) or found.keys() != {"start", "end"}:
        raise ValueError(text)
    for offset in found.values():
        if not isinstance(offset, dict) or not all(isinstance(at, str) for at in offset.values()):
            raise ValueError(text)
        for name, at in offset.items():
            parsed(at)
            TopicName.parse(name)
    return found["start"], found["end"]


def moment(text: str) -> int:
    """Read a time, UTC unless it names a zone; returns milliseconds since 1970. Raises ValueError."""
    text = text.strip()
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    return to_ms(datetime.fromisoformat(text))
