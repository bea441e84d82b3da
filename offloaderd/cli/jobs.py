"""Options of the commands for jobs, `offloadctl backfill` and `offloadctl convert`, and how they are parsed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from offloaderd.cli.options import Session
from offloaderd.cli.settings import settings_at
from offloaderd.core.errors import InvalidConfig, InvalidInput
from offloaderd.core.model import TopicName
from offloaderd.core.units import parse_bytes
from offloaderd.daemon import log
from offloaderd.daemon.settings import Settings
from offloaderd.spark.jobs.driver import JobTopics
from offloaderd.spark.jobs.executors import Options, Share
from offloaderd.spark.jobs.task import PATIENCE_S

TOPICS = click.argument("names", nargs=-1, metavar="[TOPIC...]")
MASTER = click.option("--master", metavar="URL", help="Spark's master. [default: that of spark-submit, else local[*]]")
SPARK_CONF = click.option(
    "--spark-conf", "conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark. May be repeated."
)
UPLOAD_RATE = click.option(
    "--upload-rate", metavar="SIZE", help="Bytes a second to the bucket, from all together. [default: no limit]"
)
PATIENCE = click.option(
    "--patience", metavar="SECONDS", help="How long a request may fail before it is given up. [default: 300]"
)
RATE_MIN = 64 * 1024


def settings_of(session: Session, config: Path | None) -> Settings:
    """Return the daemon's settings, of a standalone or as a daemon would load them; the log tells of errors alone.

    Raises InvalidConfig, NotFound.
    """
    log.configure("error")
    return settings_at(config, session.standalone)


class Given:
    """What was given on the command line; looked at as a whole, so that all mistakes are named at once."""

    def __init__(self, names: Sequence[str], namespaces: Sequence[str], **given: Any) -> None:  # noqa: ANN401
        self._names = names
        self._namespaces = namespaces
        self._given = given
        self._wrong: list[str] = []
        self.small_bytes = 0
        """What counts as small, once it was looked at; 0 where nothing was said."""
        self.conf: dict[str, str] = {}
        """Settings of Spark, once they were looked at."""

    def checked(self) -> tuple[JobTopics, Options]:
        """Return the topics and the options of the job. Raises InvalidConfig."""
        topics = [self._read("TOPIC", one, TopicName.parse) for one in self._names]
        namespaces = [self._read("--namespace", one, _namespace) for one in self._namespaces]
        if not self._names and not self._namespaces:
            self._wrong.append("name a TOPIC, or a --namespace")
        for one in self._given.get("conf") or ():
            key, equals, value = one.partition("=")
            self.conf[key] = value
            if not (key and equals):
                self._wrong.append(f"--spark-conf {one!r} is not KEY=VALUE")
        self.small_bytes = self._size("small", 1) or 0
        chosen = Options(
            segment_bytes=self._size("segment_size", 1) or 0,
            share=Share(
                slots=self._number("parallel") or 0,
                source_bytes_per_s=self._size("source_rate", RATE_MIN) or 0,
                upload_bytes_per_s=self._size("upload_rate", RATE_MIN) or 0,
            ),
            patience_s=self._number("patience") or PATIENCE_S,
        )
        if self._wrong:
            raise InvalidConfig("\n".join(self._wrong), hint="see --help")
        known = [one for one in topics if one is not None]
        return JobTopics(topics=known, namespaces=[one for one in namespaces if one is not None]), chosen

    def _read(self, what: str, value: str, parse: Callable[[str], Any]) -> Any:  # noqa: ANN401 - whatever is parsed
        try:
            return parse(value)
        except (InvalidInput, ValueError) as error:
            self._wrong.append(f"{what} {value!r}: {error.message if isinstance(error, InvalidInput) else error}")
            return None

    def _size(self, name: str, least: int) -> int | None:
        value = self._given.get(name)
        if value is None:
            return None
        found: int | None = self._read(_flag(name), value, parse_bytes)
        if found is not None and found < least:
            self._wrong.append(f"{_flag(name)} {value} is less than {least} bytes")
        return found

    def _number(self, name: str) -> int | None:
        value = self._given.get(name)
        if value is None:
            return None
        found: int | None = self._read(_flag(name), value, _whole)
        if found is not None and found < 1:
            self._wrong.append(f"{_flag(name)} {value} is less than 1")
        return found


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _whole(value: str) -> int:
    if not (value.isascii() and value.isdecimal()):
        raise ValueError("write a whole number")
    return int(value)


def _namespace(value: str) -> tuple[str, str]:
    tenant, slash, namespace = value.partition("/")
    if not tenant or not namespace or "/" in namespace or not slash:
        raise ValueError("write TENANT/NAMESPACE")
    return tenant, namespace
