"""The options of `format("offload")`, read at once, with all mistakes in one error.

Options with a dot are settings of the daemon by their names (`objects.bucket`, `metadata.servers`) and take precedence
over those of the environment and of the file that `config` names. All others are the source's own.
"""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offloaderd.core.errors import InvalidConfig, InvalidInput
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.core.read_options import Transactions
from offloaderd.core.units import parse_bytes
from offloaderd.daemon.settings import Settings, check
from offloaderd.spark.scan.columns import checked_schema, full_schema
from offloaderd.spark.scan.query import EntryQuery, parsed, to_ms
from offloaderd.spark.scan.share import EVERYTHING, Condition, Daemon, Metadata, Task, packed
from offloaderd.spark.value_schema import Schema, read_schema
from offloaderd.spark.values import decoder_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MIB = 1024 * 1024
PARTITION_BYTES = 128 * MIB
"""Bytes of objects that one task reads: as many as Spark gives it of files. Each task opens the bucket anew."""


class Mode(StrEnum):
    """The end of a query whose entries cannot be read for a condition that `skip` does not name."""

    FAIL = "fail"
    SKIP = "skip"
    """A row with their number and the reason replaces them, under any condition."""


class Start(StrEnum):
    """The begin of a stream without a position."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a query. `start`: the begin of a stream without `wanted.first`; `step`: the step to repeat.

    `live`: the daemon that has what is not committed, for a query that includes it.
    """

    settings: Settings
    topic: TopicPattern
    query: EntryQuery = field(default_factory=EntryQuery)
    messages: bool = False
    transactions: Transactions = Transactions.COMMITTED
    values: Schema | None = None
    mode: Mode = Mode.FAIL
    skip: frozenset[Condition] = frozenset()
    metadata: Metadata = Metadata.ZOOKEEPER
    partition_bytes: int = PARTITION_BYTES
    start: Start = Start.EARLIEST
    trigger_bytes: int | None = None
    step: tuple[dict[str, str], dict[str, str]] | None = None
    without: tuple[TopicPattern, ...] = ()
    live: Daemon | None = None

    def leaves_out(self, topic: TopicName) -> bool:
        """Return whether a topic is excluded, although it matches the pattern."""
        return any(one.matches(topic) for one in self.without)

    @property
    def skipped(self) -> frozenset[Condition]:
        """The conditions whose entries are skipped and counted, instead of ending the query."""
        return EVERYTHING if self.mode is Mode.SKIP else self.skip

    @property
    def columns(self) -> StructType:
        """All columns that a query can have."""
        everything = self.transactions is Transactions.ALL
        return full_schema(
            messages=self.messages, skips=bool(self.skipped), values=self.values, transactions=everything
        )

    @property
    def holds_back(self) -> bool:
        """Whether a query ends where consumers get nothing more yet; the range of a step already does."""
        return self.messages and self.transactions is Transactions.COMMITTED and self.step is None

    def task(self, schema: StructType, *, step: bool = False) -> Task:
        """Return the description for tasks, with the query's columns. Raises InvalidConfig for unknown ones.

        `step`: the query is a stream, which reads each entry once.
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
            daemon=pickle.dumps(self.live) if self.live is not None else b"",
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
    "partition_bytes": "about what one task reads, 128MiB unless it is said",
    "max_bytes_per_trigger": "about what one step of a stream reads; no limit unless it is said",
    "offsets": '{"start": {TOPIC: POSITION}, "end": {...}}: what lies behind one offset of a stream, up to another',
    "config": "the settings' file, read where the driver runs",
    "live": "true: also what is not committed yet, up to the newest entry that the daemon at `address` can read",
    "address": "with live=true: HOST:PORT of a daemon; of several, with commas, the first that answers is asked",
    "tls": "with live=true: true for TLS, with authorities that the system knows",
    "tls_ca": "with live=true: a file with the authorities that sign the daemon's certificate, on all machines",
    "tls_cert": "with live=true: a file with our certificate, on all machines",
    "tls_key": "with live=true: a file with its key, on all machines",
    "token_file": "with live=true: a file with a token for the daemon, on all machines",
    "token": "with live=true: the token itself",
}

OF_DAEMON = ("address", "tls", "tls_ca", "tls_cert", "tls_key", "token_file", "token")
"""The options that say how a daemon is asked."""

SPELLINGS = {name.replace("_", ""): name for name in HELP}
"""Names without underscores: Spark's own are written `maxBytesPerTrigger`, and reach a source in small letters."""

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
"""Options of Spark's own sources, with those that take their place here; the values differ."""


def parse(options: Mapping[str, str], *, environ: Mapping[str, str] | None = None) -> SourceOptions:
    """Read the options of a query. Raises InvalidConfig with a line for each mistake."""
    return _Parser(options, os.environ if environ is None else environ).parsed()


class _Parser:
    """Reads the options of one query; continues after mistakes, to find all of them."""

    def __init__(self, options: Mapping[str, str], environ: Mapping[str, str]) -> None:
        texts = {name.lower(): str(value) for name, value in options.items()}
        self._settings = {name: value for name, value in texts.items() if "." in name}
        self._environ = environ
        self._own: dict[str, str] = {}
        self._mistakes: list[str] = []
        for name in texts.keys() - self._settings.keys():
            known = SPELLINGS.get(name.replace("_", ""), name)
            if known in self._own:
                self._mistakes.append(f"{known}: it is given in two spellings, say it once")
            self._own[known] = texts[name]

    def parsed(self) -> SourceOptions:
        """Return the options. Raises InvalidConfig with all mistakes."""
        for name in self._own.keys() - HELP.keys():
            close = [ELSEWHERE[name]] if name in ELSEWHERE else get_close_matches(name, HELP, 1)
            self._mistakes.append(f"{name}: no such option" + (f"; did you mean {close[0]}?" if close else ""))
        settings = self._checked_settings()
        values = {name: value for name in READERS if (value := self._value(name)) is not None}
        topic = self._topic(values)
        start, last = values.get("start"), values.get("end")
        first = start if isinstance(start, Position) else None
        since, until = values.get("start_time"), values.get("end_time")
        messages = values.get("messages", False)
        schema = self._schema(messages=messages)
        if values.get("skip") and values.get("mode") is Mode.SKIP:
            self._mistakes.append("mode, skip: mode=skip leaves out everything, say one of the two")
        if first is not None and last is not None and first > last:
            self._mistakes.append(f"start, end: the range {first}..{last} is reversed")
        if since is not None and until is not None and since >= until:
            self._mistakes.append("start_time, end_time: the range is empty or reversed")
        live = self._daemon(values)
        if "transactions" in self._own and not messages:
            self._mistakes.append("transactions: only with messages=true, entries are given whatever they are in")
        sizes = {name: values[name] for name in ("partition_bytes", "max_bytes_per_trigger") if name in values}
        self._mistakes += [f"{name} = {size}: at least one byte" for name, size in sizes.items() if size < 1]
        if self._mistakes or settings is None or topic is None:
            count = len(self._mistakes)
            head = "an option is wrong" if count == 1 else f"{count} options are wrong"
            raise InvalidConfig("\n  ".join([f"{head}:", *self._mistakes]), hint="docs/spark.md describes each option")
        return SourceOptions(
            settings=settings,
            topic=topic,
            query=EntryQuery(first=first, last=last, since_ms=since, until_ms=until),
            values=schema,
            start=start if isinstance(start, Start) else Start.EARLIEST,
            live=live,
            **{field: values[name] for name, field in FIELDS.items() if name in values},
        )

    def _checked_settings(self) -> Settings | None:
        """Return the settings that name the bucket and ZooKeeper; a bucket without ZooKeeper is no mistake."""
        path = self._own.get("config")
        try:
            report = check(Path(path) if path else None, self._environ, self._settings)
        except InvalidConfig as error:
            self._mistakes.append(f"config: {error.message}")
            return None
        self._mistakes += report.mistakes
        return report.settings

    def _topic(self, values: Mapping[str, Any]) -> TopicPattern | None:
        names = [name for name in ("topic", "path") if name in self._own]
        if len(names) != 1:
            what = "say it once: as an option or to load()" if names else HELP["topic"]
            self._mistakes.append(f"topic: {what}")
            return None
        return values.get(names[0])

    def _daemon(self, values: Mapping[str, Any]) -> Daemon | None:
        """Return the daemon to ask, None unless the query is live; one without an address is a mistake."""
        given = [name for name in OF_DAEMON if name in self._own]
        if not values.get("live"):
            if given:
                self._mistakes.append(f"{', '.join(given)}: only with live=true, nothing else asks a daemon")
            return None
        if "offsets" in self._own:
            self._mistakes.append("live, offsets: a step of a stream has what is committed, say one of the two")
        if "address" not in self._own:
            self._mistakes.append(f"address: live=true needs it; {HELP['address']}")
        from offloaderd.client import Trust  # noqa: PLC0415 - few queries need it, and it takes long

        fields = {"tls": "tls", "tls_ca": "ca_file", "tls_cert": "cert_file", "tls_key": "key_file"}
        fields |= {"token_file": "token_file", "token": "token"}
        trust = Trust(**{field: values[name] for name, field in fields.items() if name in values})
        try:
            trust.check()
        except InvalidInput as error:
            self._mistakes.append(f"{', '.join(name for name in given if name != 'address')}: {error.message}")
        return Daemon(values.get("address", ()), trust)

    def _schema(self, *, messages: bool) -> Schema | None:
        """Return the schema of values; one that Spark has no type for is a mistake, as is one without messages."""
        names = [name for name in ("schema", "encoding") if name in self._own]
        if names and not messages:
            self._mistakes.append(f"{', '.join(names)}: only with messages=true, entries have no value")
        if "schema" not in self._own:
            if names:
                self._mistakes.append(f"encoding: of what? schema: {HELP['schema']}")
            return None
        try:
            found = read_schema(self._own["schema"], self._own.get("encoding"))
            decoder_of(found)
        except InvalidInput as error:
            self._mistakes.append(f"schema = {self._own['schema'][:80]!r}: {error.message}")
            return None
        return found

    def _value(self, name: str) -> Any:  # noqa: ANN401 - of the option's type
        """Return an option's value, None when it was not given or is wrong."""
        if (text := self._own.get(name)) is None:
            return None
        try:
            return READERS[name](text)
        except (InvalidInput, ValueError) as error:
            explained = name in {"topic", "path", "without", "address"}
            why = f": {error.message}" if explained and isinstance(error, InvalidInput) else ""
            self._mistakes.append(f"{name} = {text[:80]!r}{why}; allowed: {HELP[name]}")
            return None


def boolean(text: str) -> bool:
    """Read true or false. Raises ValueError."""
    values = {"true": True, "false": False}
    if (word := text.strip().lower()) not in values:
        raise ValueError(text)
    return values[word]


def conditions(text: str) -> frozenset[Condition]:
    """Read names of conditions with commas between them. Raises ValueError."""
    return frozenset(Condition(word.strip().lower()) for word in text.split(",") if word.strip())


def start_of(text: str) -> Start | Position:
    """Read the begin of a stream or a position. Raises InvalidInput."""
    word = text.strip().lower()
    return Start(word) if word in set(Start) else Position.parse(text)


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


def addresses(text: str) -> tuple[str, ...]:
    """Read addresses of daemons, with commas between them. Raises InvalidInput."""
    from offloaderd.client import checked_address  # noqa: PLC0415 - as above

    return tuple(checked_address(one.strip()) for one in text.split(","))


def moment(text: str) -> int:
    """Read a time, UTC unless it names a zone; return milliseconds since 1970. Raises ValueError."""
    text = text.strip()
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    return to_ms(datetime.fromisoformat(text))


def _word(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    return lambda text: kind(text.strip().lower())


READERS: dict[str, Callable[[str], Any]] = {
    "topic": TopicPattern.parse,
    "path": TopicPattern.parse,
    "without": lambda text: tuple(TopicPattern.parse(one.strip()) for one in text.split(",")),
    "messages": boolean,
    "transactions": _word(Transactions),
    "start": start_of,
    "end": Position.parse,
    "start_time": moment,
    "end_time": moment,
    "mode": _word(Mode),
    "skip": conditions,
    "metadata": _word(Metadata),
    "partition_bytes": parse_bytes,
    "max_bytes_per_trigger": parse_bytes,
    "offsets": offsets,
    "live": boolean,
    "address": addresses,
    "tls": boolean,
    "tls_ca": Path,
    "tls_cert": Path,
    "tls_key": Path,
    "token_file": Path,
    "token": str,
}
"""The options that can be read one by one. Each reader raises ValueError or InvalidInput."""

FIELDS = {"max_bytes_per_trigger": "trigger_bytes", "offsets": "step"} | {
    name: name for name in ("without", "messages", "transactions", "mode", "skip", "metadata", "partition_bytes")
}
"""The fields of SourceOptions that an option gives as it is."""
