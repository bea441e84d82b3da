"""What `offloadctl backfill` and `offloadctl convert` share: options, how they are parsed, and the end of a run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from offloaderd.cli.options import Session, common, complete_topics
from offloaderd.cli.program import FAILED, OK, report
from offloaderd.cli.settings import CONFIG, settings_at
from offloaderd.core.errors import InvalidConfig, InvalidInput
from offloaderd.core.model import TopicName
from offloaderd.core.units import parse_bytes
from offloaderd.daemon import log
from offloaderd.daemon.settings import Settings
from offloaderd.spark.jobs.driver import Ended, JobTopics
from offloaderd.spark.jobs.executors import Options, Share
from offloaderd.spark.jobs.task import PATIENCE_S

T = TypeVar("T")
Command = Callable[..., Any]
Show = Callable[[Sequence[T]], None]
Parse = Callable[[str], Any]
TOPICS = click.argument("names", nargs=-1, metavar="[TOPIC...]", shell_complete=complete_topics)
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


def selected(namespaces: str) -> Callable[[Command], Command]:
    """Return what adds to a command its topics, --namespace with this help, --config and the shared options."""
    option = click.option("--namespace", "namespaces", multiple=True, metavar="TENANT/NAMESPACE", help=namespaces)
    return lambda function: TOPICS(option(CONFIG(common(function))))


def settings_of(session: Session, config: Path | None) -> Settings:
    """Return the daemon's settings, of a standalone or as a daemon would load them; the log tells of errors alone.

    Raises InvalidConfig, NotFound.
    """
    log.configure("error")
    return settings_at(config, session.standalone)


class Given(NamedTuple):
    """What was given on the command line: topics, options of the job, settings of Spark, and what counts as small.

    `small_bytes` is 0 where nothing was said.
    """

    topics: JobTopics
    options: Options
    conf: dict[str, str]
    small_bytes: int


def parsed(names: Sequence[str], namespaces: Sequence[str], **given: Any) -> Given:  # noqa: ANN401 - options by name
    """Parse a command line. Raises InvalidConfig with all mistakes at once."""
    wrong: list[str] = []
    conf: dict[str, str] = {}

    def read(what: str, value: str, parse: Parse) -> Any:  # noqa: ANN401 - whatever is parsed
        try:
            return parse(value)
        except (InvalidInput, ValueError) as error:
            wrong.append(f"{what} {value!r}: {error.message if isinstance(error, InvalidInput) else error}")
            return None

    def number(name: str, parse: Parse, least: int, unit: str = "") -> int:
        """Return a number, 0 for one that was not given."""
        if (value := given.get(name)) is None:
            return 0
        flag = f"--{name.replace('_', '-')}"
        found = read(flag, value, parse)
        if found is not None and found < least:
            wrong.append(f"{flag} {value} is less than {least}{unit}")
        return found or 0

    def size(name: str, least: int) -> int:
        return number(name, parse_bytes, least, " bytes")

    topics = [read("TOPIC", one, TopicName.parse) for one in names]
    scopes = [read("--namespace", one, _namespace) for one in namespaces]
    if not names and not namespaces:
        wrong.append("name a TOPIC, or a --namespace")
    try:
        conf = spark_settings(given.get("conf") or ())
    except InvalidConfig as error:
        wrong.append(error.message)
    small_bytes = size("small", 1)
    segment_bytes = size("segment_size", 1)
    slots = number("parallel", _whole, 1)
    share = Share(
        slots=slots, source_bytes_per_s=size("source_rate", RATE_MIN), upload_bytes_per_s=size("upload_rate", RATE_MIN)
    )
    options = Options(segment_bytes=segment_bytes, share=share, patience_s=number("patience", _whole, 1) or PATIENCE_S)
    if wrong:
        raise InvalidConfig("\n".join(wrong), hint="see --help")
    return Given(JobTopics(topics=topics, namespaces=scopes), options, conf, small_bytes)


def _whole(value: str) -> int:
    if not (value.isascii() and value.isdecimal()):
        raise ValueError("write a whole number")
    return int(value)


def _namespace(value: str) -> tuple[str, str]:
    tenant, slash, namespace = value.partition("/")
    if not tenant or not namespace or "/" in namespace or not slash:
        raise ValueError("write TENANT/NAMESPACE")
    return tenant, namespace


def tell_ended(
    session: Session, ended: Sequence[Ended[T]], as_json: Callable[[Ended[T]], dict[str, object]], text: Show[Ended[T]]
) -> int:
    """Write what became of the topics of a run, and the errors; returns the exit code."""
    session.tell({"topics": [as_json(one) for one in ended]}, lambda: text(ended))
    errors = [one.error for one in ended if one.error is not None]
    for error in errors:
        report(error)
    return FAILED if errors else OK


def spark_settings(given: Sequence[str]) -> dict[str, str]:
    """Return settings of Spark by their names. Raises InvalidConfig with all mistakes at once."""
    if wrong := [one for one in given if not one.partition("=")[0] or "=" not in one]:
        raise InvalidConfig("\n".join(f"--spark-conf {one!r} is not KEY=VALUE" for one in wrong))
    return dict(one.split("=", 1) for one in given)
