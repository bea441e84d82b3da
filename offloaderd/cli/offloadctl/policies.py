"""`set-`, `get-` and `remove-offload-policies`, as in pulsar-admin, and `import-broker-conf`.

Each value has two options: ours, where a bare number is bytes or seconds, and pulsar-admin's, whose name has the unit.
All mistakes of a command line are reported at once.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import wraps
from pathlib import Path
from typing import Any

import click

from offloaderd.cli import options, show
from offloaderd.cli.offloadctl.topics import POLICIES, topics
from offloaderd.cli.options import Session, warn_of_small_segments
from offloaderd.cli.program import OK, USAGE
from offloaderd.client import DaemonClient
from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import OffloadMethod
from offloaderd.policy import broker_conf
from offloaderd.policy.broker_conf import Import
from offloaderd.policy.policies import FIELDS, Kind, shown
from offloaderd.protocol.conversion import picked
from offloaderd.protocol.v1 import policy_pb2

PULSAR_FLAGS: Mapping[str, tuple[str, ...]] = {
    "method": ("--offloadMethod",),
    "segment_bytes_max": ("--maxSizePerOffloadSegmentMbytes",),
    "segment_age_max_s": ("--maxOffloadSegmentRolloverTimeMinutes",),
    "segment_age_min_s": ("--minOffloadSegmentRolloverTimeMinutes",),
    "threshold_bytes": ("--offloadThresholdInBytes", "--offloadAfterThreshold", "-t", "-oat"),
    "threshold_s": ("--offloadThresholdInSeconds", "--offloadAfterThresholdInSeconds", "-ts", "-oats"),
    "deletion_lag_s": ("--offloadDeletionLagInMillis", "--offloadAfterElapsed", "-dl", "-oae"),
    "read_priority": ("--offloadedReadPriority", "-orp"),
    "bucket": ("-b",),
}
"""pulsar-admin's names (namespaces and topics set-offload-policies), and those of PIP-76."""

STORED_AS = {
    "storage_class": "Storage class of new data objects, as STANDARD_IA; empty: the bucket's own.",
    "tags": "Tags of new objects, as 'tenant={tenant},namespace={namespace}'; empty: none.",
}
HELP = (
    {name: text for name, (_, text) in POLICIES.items()}
    | dict.fromkeys(("bucket", "prefix"), "Refuse a daemon that stores elsewhere.")
    | STORED_AS
    | {"mirror": "Keep a second copy of each segment in this place, as BUCKET/PREFIX; empty: none."}
    | {"mirror_required": "Whether the source keeps a ledger until all its segments have their copy in the mirror."}
)
METAVARS = {Kind.BYTES: "SIZE", Kind.SECONDS: "TIME", Kind.TEXT: "TEXT"}
PULSAR_UNIT = re.compile("Mbytes|Minutes|Bytes|Seconds|Millis")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Change nothing; show what would change for which topics.")


def policy_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add our option and that of pulsar-admin for every value; the function gets the values as `given`."""

    @wraps(function)
    def command(**arguments: Any) -> Any:  # noqa: ANN401 - a command's own arguments
        texts = {name: (arguments.pop(name), arguments.pop(f"pulsar_{name}", None)) for name in FIELDS}
        return function(given=given(texts), **arguments)

    wrapped: Callable[..., Any] = command
    for name, field in reversed(list(FIELDS.items())):
        metavar = "|".join(field.choices) if field.kind is Kind.WORD else METAVARS[field.kind]
        if name in PULSAR_FLAGS:
            named = PULSAR_UNIT.search(field.pulsar)
            unit = named[0].upper() if named is not None else metavar
            text = f"The same as --{field.option}, as in pulsar-admin."
            wrapped = click.option(*PULSAR_FLAGS[name], f"pulsar_{name}", metavar=unit, help=text)(wrapped)
        wrapped = click.option(f"--{field.option}", name, metavar=metavar, help=HELP[name])(wrapped)
    return DRY_RUN(wrapped)


def given(texts: Mapping[str, tuple[str | None, str | None]]) -> policy_pb2.OffloadPolicies:
    """Return the values of the options as a message. Raises UsageError with every mistake."""
    values: dict[str, Any] = {}
    mistakes = []
    for name, (ours, pulsars) in texts.items():
        if ours is not None and pulsars is not None:
            mistakes.append(f"--{FIELDS[name].option} and {PULSAR_FLAGS[name][0]} are the same: give one of them")
            continue
        text, scale = (ours, Fraction(1)) if pulsars is None else (pulsars, FIELDS[name].scale)
        if text is None:
            continue
        try:
            values[name] = FIELDS[name].read(text, scale=scale)
        except InvalidInput as error:
            mistakes.append(error.message)
    if mistakes:
        raise click.UsageError("\n".join(mistakes))
    return policy_pb2.OffloadPolicies(**values)


def _show_policies(found: policy_pb2.GetPoliciesResponse) -> None:
    """Show each value with its origin; below the table damage, and whether and why the topic is offloaded."""
    rows = [
        (one.field, shown(one.field, getattr(found.effective, one.field)), f"{one.origin} {one.name}".strip())
        for one in found.origins
    ]
    show.table(["POLICY", "VALUE", "ORIGIN"], rows)
    if found.damage:
        show.note(f"what is stored there cannot be read: {found.damage}")
    if found.level.WhichOneof("level") != "topic":
        return
    if not found.enabled:
        reason = "it is disabled" if found.HasField("enabled") else "nobody enabled it"
        show.note(f"the topic is not offloaded: {reason}")
    elif found.selected_by:
        show.note(f"the topic is offloaded because of {found.selected_by}")


def _policies_json(found: policy_pb2.GetPoliciesResponse) -> dict[str, object]:
    document: dict[str, object] = {
        "level": level_name(found.level),
        "own": {field.name: value for field, value in found.own.ListFields()},
        "effective": {
            one.field: {"value": getattr(found.effective, one.field), **picked(one, "origin", "name", kept=("origin",))}
            for one in found.origins
        },
        "damage": found.damage or None,
    }
    if found.level.WhichOneof("level") == "topic":
        document["enabled"] = found.enabled if found.HasField("enabled") else None
        document["selected_by"] = found.selected_by or None
    return document


def level_name(level: policy_pb2.PolicyLevel) -> str:
    """Return the name of a level."""
    match level.WhichOneof("level"):
        case "namespace":
            return f"namespace {level.namespace}"
        case "topic":
            return level.topic
    return "broker"


def set_or_remove(
    session: Session, level: policy_pb2.PolicyLevel, policies: policy_pb2.OffloadPolicies | None, *, dry_run: bool
) -> None:
    """Set the policies of a level, or remove them (None), and show what changes for which topics."""

    def change(client: DaemonClient) -> Awaitable[policy_pb2.ChangePoliciesResponse]:
        if policies is None:
            return client.remove_policies(level, dry_run=dry_run)
        return client.set_policies(level, policies, dry_run=dry_run)

    done = session.ask(change, timeout_s=options.PATTERN_TIMEOUT_S)
    warn_of_small_segments(policies.segment_bytes_max if policies is not None else 0)
    changed(session, level, done, "remove" if policies is None else "set", dry_run=dry_run)


def changed(
    session: Session,
    level: policy_pb2.PolicyLevel,
    done: policy_pb2.ChangePoliciesResponse,
    verb: str,
    *,
    dry_run: bool,
) -> None:
    """Show what was, or would be, changed."""
    rows = [picked(one, "topic", "outcome", "differences", "reason") for one in done.topics]
    document = {"level": level_name(level), "dry_run": dry_run, "topics": rows, "notes": list(done.notes)}
    session.tell(document, lambda: _show_changed(level, done, verb, dry_run=dry_run))


def _show_changed(
    level: policy_pb2.PolicyLevel, done: policy_pb2.ChangePoliciesResponse, verb: str, *, dry_run: bool
) -> None:
    if dry_run:
        show.table(
            ["TOPIC", "OUTCOME", "CHANGES"],
            [(one.topic, one.outcome, ", ".join(one.differences) or one.reason) for one in done.topics],
        )
    counts = Counter(one.outcome.replace("-", " ") for one in done.topics)
    changes = [f"{show.plural(count, 'topic')} {outcome}" for outcome, count in counts.items()]
    summary = ", ".join(changes) or "no topic changed"
    past = {"set": "set", "remove": "removed"}[verb]
    click.echo(f"{f'would {verb}' if dry_run else past} the offload policies of {level_name(level)}: {summary}")
    for note in done.notes:
        show.note(f"note: {note}")


BROKER = policy_pb2.PolicyLevel(broker=True)
NAMESPACE = click.argument(
    "level", metavar="TENANT/NAMESPACE", callback=lambda _context, _param, said: policy_pb2.PolicyLevel(namespace=said)
)
TOPIC = click.argument(
    "level",
    metavar="TOPIC",
    type=options.TOPIC,
    callback=lambda _context, _param, said: policy_pb2.PolicyLevel(topic=str(said)),
)


def add_commands(group: click.Group, argument: Callable[[Any], Any], **texts: str) -> None:
    """Add a level's three commands to a group: `argument` names the level, `texts` are the helps, short ones first."""

    def set_policies(
        session: Session, given: policy_pb2.OffloadPolicies, dry_run: bool, level: policy_pb2.PolicyLevel = BROKER
    ) -> None:
        set_or_remove(session, level, given, dry_run=dry_run)

    def remove_policies(session: Session, dry_run: bool, level: policy_pb2.PolicyLevel = BROKER) -> None:
        set_or_remove(session, level, None, dry_run=dry_run)

    def get_policies(session: Session, level: policy_pb2.PolicyLevel = BROKER) -> None:
        found = session.ask(lambda client: client.policies(level))
        session.tell(_policies_json(found), lambda: _show_policies(found))

    for verb, function in (
        ("set", policy_options(options.common(set_policies))),
        ("get", options.common(get_policies)),
        ("remove", DRY_RUN(options.common(remove_policies))),
    ):
        short, _, text = texts[verb].partition("\n")
        group.command(f"{verb}-offload-policies", short_help=short, help=text)(argument(function))


@click.group()
@options.common
def broker(session: Session) -> None:
    """Set, show and remove the policies of the cluster, for topics and namespaces without a value of their own."""


@click.group()
@options.common
def namespaces(session: Session) -> None:
    """Set, show and remove the policies of a namespace."""


add_commands(
    broker,
    lambda function: function,
    set="""Set the policies of the cluster.
    Set the policies of the cluster, instead of all those set before. It offloads no topic by itself.

    A bare number is in bytes or seconds; 256M, 2h and the like have a unit. A value that is not given is that of the
    daemon's settings.

    \b
    Examples:
      offloadctl broker set-offload-policies --segment-size 512M --segment-age 10m
      offloadctl broker set-offload-policies -orp bookkeeper-first --dry-run
    """,
    get="""Show the policies of the cluster.
    Show the effective values for topics and namespaces without a value of their own, and the level of each value.

    \b
    Examples:
      offloadctl broker get-offload-policies
    """,
    remove="""Remove the policies of the cluster.
    Remove the policies of the cluster: values that no topic and no namespace sets are those of the daemon's settings.

    \b
    Examples:
      offloadctl broker remove-offload-policies --dry-run
    """,
)
add_commands(
    namespaces,
    NAMESPACE,
    set="""Set the policies of a namespace.
    Set the policies of a namespace, instead of all those set before.

    With a method of streaming or ledger-based all its topics are offloaded, those that come later as well, as in
    Pulsar; Pulsar's own topics, compacted ones, and those that were disabled by name are left alone. A bare number is
    in bytes or seconds; 256M, 2h and the like have a unit. A value that is not given is that of the cluster.

    \b
    Examples:
      offloadctl namespaces set-offload-policies public/default --method streaming --segment-age 5m
      offloadctl namespaces set-offload-policies acme/eu --method ledger-based -oat 10G -oats 2h -dl 4h
      offloadctl namespaces set-offload-policies acme/eu --read-priority bookkeeper-first --dry-run
    """,
    get="""Show the policies of a namespace.
    Show the effective values for topics of a namespace without a value of their own, and the level of each value.

    \b
    Examples:
      offloadctl namespaces get-offload-policies public/default
    """,
    remove="""Remove the policies of a namespace.
    Remove the policies of a namespace. Topics that were offloaded only because of it are disabled.

    \b
    Examples:
      offloadctl namespaces remove-offload-policies public/default --dry-run
    """,
)
add_commands(
    topics,
    TOPIC,
    set="""Set the policies of a topic.
    Set the policies of a topic and its partitions, instead of all those set before.

    The topic is offloaded from now on, unless it was disabled by its name. A bare number is in bytes or seconds; 256M,
    2h and the like have a unit. A value that is not given is that of the namespace.

    \b
    Examples:
      offloadctl topics set-offload-policies orders --segment-size 256M
      offloadctl topics set-offload-policies orders --maxSizePerOffloadSegmentMbytes 256 -orp bookkeeper-first
      offloadctl topics set-offload-policies orders --method none --dry-run
    """,
    get="""Show the policies of a topic.
    Show the effective values of a topic, and the level of each value.

    \b
    Examples:
      offloadctl topics get-offload-policies orders
      offloadctl topics get-offload-policies orders -o json
    """,
    remove="""Remove the policies of a topic.
    Remove the policies that were set for a topic by its name; it then follows its namespace and patterns.

    It stays enabled, or disabled, as it is: `offloadctl topics disable` ends its offloading.

    \b
    Examples:
      offloadctl topics remove-offload-policies orders
    """,
)


CONF_BYTES_MAX = 10 << 20
"""A broker.conf has some 100 kB."""


@click.command("import-broker-conf")
@click.argument("conf", metavar="BROKER_CONF", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--apply", is_flag=True, help="Set the policies at the broker level. Without it nothing is changed.")
@click.option(
    "--method",
    type=click.Choice([str(one) for one in OffloadMethod]),
    help="The method to set. [default: ledger-based, as brokers offload]",
)
@options.common
def import_broker_conf(session: Session, conf: Path, apply: bool, method: str | None) -> int:
    """Show for every offload key of a broker.conf how it is used here, or why not.

    Policies are set at the broker level with --apply; without it no daemon is called. Settings of the daemon are shown
    as lines for its settings file. Secrets are neither copied nor shown. Mistakes are shown with their lines, and
    nothing is set then.

    \b
    Examples:
      offloadctl import-broker-conf /pulsar/conf/broker.conf
      offloadctl import-broker-conf broker.conf --method streaming --apply
    """
    if conf.stat().st_size > CONF_BYTES_MAX:
        raise click.BadParameter(f"{conf} is larger than {show.size(CONF_BYTES_MAX)}: it is no broker.conf")
    found = broker_conf.read(conf.read_text(encoding="utf-8", errors="replace"))
    if method is not None:
        found.policies = replace(found.policies, method=OffloadMethod(method))
        found.notes = [note for note in found.notes if not note.startswith("method = ")]
    done = None
    if apply and not found.mistakes:
        policies = policy_pb2.OffloadPolicies(**found.policies.set_values())
        done = session.ask(lambda client: client.set_policies(BROKER, policies), timeout_s=options.PATTERN_TIMEOUT_S)
    _show_import(session, found, done)
    return USAGE if found.mistakes else OK


def _show_import(session: Session, found: Import, done: policy_pb2.ChangePoliciesResponse | None) -> None:
    """Show the keys, and what was changed if they were applied."""
    names = ("line", "key", "value", "used_as", "why_not=why")
    document = {
        "keys": [picked(one, *names, kept=("value",)) for one in found.verdicts],
        "policies": dict(found.policies.set_values()),
        "settings": found.settings,
        "notes": found.notes,
        "mistakes": found.mistakes,
        "applied": done is not None,
    }
    session.tell(document, lambda: _show_keys(session, found, done))


def _show_keys(session: Session, found: Import, done: policy_pb2.ChangePoliciesResponse | None) -> None:
    show.table(
        ["LINE", "KEY", "VALUE", "USED AS"],
        [(str(one.line), one.key, one.value, one.used_as or f"- ({one.why})") for one in found.verdicts],
    )
    if found.policies.set_values():
        click.echo("\nPolicies of the broker level:")
        show.facts((f"  {name}", shown(name, value)) for name, value in found.policies.set_values().items())
    if found.settings:
        click.echo("\nFor the daemon's settings file:")
        for line in broker_conf.toml(found.settings):
            click.echo(f"  {line}".rstrip())
    click.echo()
    for note in found.notes:
        show.note(f"note: {note}")
    for mistake in found.mistakes:
        show.note(f"mistake: {mistake}")
    if done is not None:
        changed(session, BROKER, done, "set", dry_run=False)
    elif not found.mistakes:
        show.note("nothing was changed; --apply sets the policies")
