"""`offloadctl topics`: list topics, and enable and disable their offload."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import click

from offloaderd.cli import options, show
from offloaderd.cli.offloadctl import offload
from offloaderd.cli.options import DURATION, SIZE, Parsed, Session, duration_param, warn_of_small_segments
from offloaderd.client import DaemonClient
from offloaderd.core.errors import Transient
from offloaderd.core.model import OutagePolicy, TierRetention
from offloaderd.core.names.patterns import Scope, TopicPattern
from offloaderd.policy.policies import FIELDS
from offloaderd.protocol.conversion import as_json
from offloaderd.protocol.v1 import admin_pb2, policy_pb2


@click.group()
@options.common
def topics(session: Session) -> None:
    """List topics, and choose which of them are offloaded."""


for command in (offload.offload_topic, offload.offload_status, offload.pause, offload.resume):
    topics.add_command(command)


def selecting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument and option of `enable` and `disable`: a topic or pattern, and --dry-run."""
    pattern = click.argument(
        "pattern",
        metavar="TOPICS",
        nargs=-1,
        required=True,
        callback=options.one_pattern,
        shell_complete=options.complete_topics,
    )
    return pattern(offload.DRY_RUN(function))


@topics.command("list", short_help="List the topics, and the patterns that enable them.")
@click.argument("prefix", default="")
@options.common
def list_topics(session: Session, prefix: str) -> None:
    """List the topics that are enabled or that the ledger source knows, and the patterns that were enabled.

    PREFIX is a tenant, or TENANT/NAMESPACE; without it all topics are listed. Ledgers and entries are counted in lists
    of up to 1,000 topics. A daemon that only reads has the topics of the bucket, and does not know their policies (-).

    \b
    Examples:
      offloadctl topics list
      offloadctl topics list public/default -o json
    """
    found, selections = session.ask(lambda client: listed(client, prefix))
    document = {
        "topics": [_summary_json(one) for one in found],
        "selections": [_selection_json(one) for one in selections],
    }
    session.tell(document, lambda: _show_topics(prefix, found, selections))


async def listed(
    client: DaemonClient, prefix: str
) -> tuple[Sequence[admin_pb2.TopicSummary], Sequence[admin_pb2.Selection]]:
    """Return the topics and patterns below a prefix; without ZooKeeper no patterns, with a note on stderr."""
    found = await client.topics(prefix)
    try:
        return found, [one for one in await client.selections() if concerns(one, prefix)]
    except Transient as error:
        show.note(f"only topics that this daemon works on are shown, and no patterns: {error.message}")
        return found, []


def _show_topics(
    prefix: str, found: Sequence[admin_pb2.TopicSummary], selections: Sequence[admin_pb2.Selection]
) -> None:
    if not found:
        show.note("no topics" + (f" below {prefix}" if prefix else ""))
    else:
        TOPICS.show(found)
    if selections:
        click.echo()
        SELECTIONS.show(selections)
        for one in selections:
            if one.damage:
                show.note(f"{one.pattern}: {one.damage}")


def concerns(selection: admin_pb2.Selection, prefix: str) -> bool:
    """Whether a selection can match topics below a prefix."""
    if selection.damage:
        return True
    parts = [*prefix.removesuffix("/").split("/"), ""][:2]
    below = Scope(parts[0] or None, parts[1] or None)
    scope = TopicPattern.named(selection.pattern).scope
    return scope.covers(below) or below.covers(scope)


def _summary_json(one: admin_pb2.TopicSummary) -> dict[str, object]:
    """Return a topic as JSON; `enabled` is null where it is unknown."""
    enabled = {"enabled": None} if one.policy_unknown else {}
    return {**as_json(one, leave_out=("policy_unknown",)), **enabled}


def _offloaded(one: admin_pb2.TopicSummary) -> str:
    if one.policy_unknown:
        return "-"
    return ("paused" if one.paused_ms else "partitions" if one.partitioned else "yes") if one.enabled else "no"


TOPICS: show.Table[admin_pb2.TopicSummary] = show.Table(
    ("TOPIC", "topic"),
    ("OFFLOADED", _offloaded),
    ("SELECTED BY", "selected_by"),
    ("OWNER", lambda one: (one.owner or "-") + (f" ({one.placement})" if one.placement else "")),
    (">LEDGERS", "ledgers"),
    (">ENTRIES", "entries"),
)
SELECTIONS: show.Table[admin_pb2.Selection] = show.Table(
    ("SELECTION", "pattern"),
    (">TOPICS", "topics"),
    (">SEGMENT SIZE", "segment_bytes_max"),
    (">SEGMENT AGE", "segment_age_max_s"),
    ("SINCE", lambda one: "not applied" if one.damage else show.moment(one.created_ms)),
)


def _selection_json(one: admin_pb2.Selection) -> dict[str, object]:
    """Return a selection as JSON shows it; values that follow the settings of the daemon are null."""
    policies = {field.name: value for field, value in one.policies.ListFields()}
    return {**as_json(one, leave_out=("policies",)), "policies": policies}


POLICIES: dict[str, tuple[click.ParamType[Any] | None, str]] = {
    "segment_bytes_max": (SIZE, "Roll segments at this size, e.g. 256M."),
    "segment_age_max_s": (DURATION, "Roll a segment this long after its first entry, e.g. 90s or 10m."),
    "segment_age_min_s": (duration_param(0), "Let a segment that is full wait at least this long."),
    "read_priority": (options.PRIORITY, "tiered-storage-first (or tiered-first), or bookkeeper-first (PIP-73)."),
    "method": (
        None,
        "streaming: entries as they arrive (PIP-76). ledger-based: closed ledgers (PIP-17). none: no offload.",
    ),
    "threshold_bytes": (
        None,
        "Ledger-based: bytes of a topic that stay in BookKeeper alone; 0: offload every closed ledger.",
    ),
    "threshold_s": (None, "Ledger-based: offload ledgers that were closed this long ago, e.g. 2h."),
    "deletion_lag_s": (None, "Keep ledgers at the source this long after their offloading; off: for ever."),
    "history_order": (
        None,
        "history-first: offload history before new entries (PIP-76). alongside: offload both at once.",
    ),
    "outage": (
        click.Choice([str(one) for one in OutagePolicy]),
        "During a long outage of the object store: take nothing, leave entries in the source, or, for topics that are "
        "only pushed, spill them to the disk of the daemon.",
    ),
    "retention": (
        click.Choice([str(one) for one in TierRetention]),
        "Keep offloaded segments for ever, as long as the list of the source has the ledger, or up to an age or size.",
    ),
    "retention_age_s": (DURATION, "With --retention limited: delete segments that were offloaded longer ago."),
    "retention_bytes": (SIZE, "With --retention limited: delete the oldest segments beyond this size, e.g. 500G."),
}
"""Options of `topics enable`; `set-offload-policies` has all. Those without a type are parsed as there."""


def policies(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for policies."""
    for name, (known, text) in reversed(POLICIES.items()):
        field = FIELDS[name]
        kind = known or Parsed("|".join(field.choices) or str(field.kind), field.read)
        metavar = "TIME" if kind.name == "duration" else None
        function = click.option(f"--{field.option}", name, type=kind, metavar=metavar, help=text)(function)
    return function


@topics.command(short_help="Start offloading a topic, or all that match a pattern.")
@selecting
@policies
@options.common
def enable(
    session: Session,
    pattern: TopicPattern,
    dry_run: bool,
    **policy: Any,  # noqa: ANN401 - the options above
) -> None:
    """Start offloading, or change the policy of what is offloaded.

    TOPICS is a topic, with its partitions if it has any; or TENANT/NAMESPACE/* or TENANT/*, or re:EXPRESSION, which has
    to match TENANT/NAMESPACE/TOPIC from end to end. A pattern is a standing order: topics that match and come later are
    enabled within seconds. Pulsar's own topics and compacted ones are left alone by patterns, and enabled when named;
    topics that were enabled or disabled by name stay as they are. Of several patterns the narrowest counts. What is
    not given is left to the daemon's configuration.

    Quote a pattern, so that the shell does not put the names of files in its place.

    \b
    Examples:
      offloadctl topics enable persistent://public/default/orders
      offloadctl topics enable orders --segment-size 256M --segment-age 60
      offloadctl topics enable orders --method ledger-based --threshold-size 0
      offloadctl topics enable orders --outage block
      offloadctl topics enable orders --retention limited --retain-age 7776000
      offloadctl topics enable 'public/default/*' --dry-run
      offloadctl topics enable 'acme/*'
      offloadctl topics enable 're:public/default/eu-.*'
    """
    further = policy_pb2.OffloadPolicies(
        **{name: policy.pop(name) for name, (kind, _) in POLICIES.items() if kind is None}
    )
    found = session.ask(
        lambda client: client.enable(pattern.topic or pattern, dry_run=dry_run, policies=further, **policy),
        timeout_s=timeout_of(pattern),
    )
    answer(session, pattern, found.topics, enabled=True, dry_run=dry_run)
    warn_of_small_segments(policy["segment_bytes_max"] or 0)


@topics.command(short_help="Stop offloading a topic, or what a pattern enabled.")
@selecting
@options.common
def disable(session: Session, pattern: TopicPattern, dry_run: bool) -> None:
    """Complete the open segments and stop offloading.

    TOPICS is a topic, with its partitions if it has any, which no pattern enables again; or a pattern as it was
    enabled, and with it end the topics that it enabled and that no other pattern matches. What was offloaded stays
    readable.

    \b
    Examples:
      offloadctl topics disable persistent://public/default/orders
      offloadctl topics disable orders --timeout 300
      offloadctl topics disable 'public/default/*' --dry-run
    """
    found = session.ask(
        lambda client: client.disable(pattern.topic or pattern, dry_run=dry_run), timeout_s=timeout_of(pattern)
    )
    answer(session, pattern, found.topics, enabled=False, dry_run=dry_run)


def timeout_of(pattern: TopicPattern) -> float:
    """Return the deadline, which is longer for patterns, since they may change many topics."""
    return options.CALL_TIMEOUT_S if pattern.topic is not None else options.PATTERN_TIMEOUT_S


def answer(
    session: Session, pattern: TopicPattern, changes: Sequence[admin_pb2.TopicChange], *, enabled: bool, dry_run: bool
) -> None:
    """Show what was done, in a dry run what would be done to each topic; and counts, if there can be several topics."""
    name, rows = str(pattern.topic or pattern), [as_json(one) for one in changes]
    session.tell(
        {"topic": name, "enabled": None if dry_run else enabled, "dry_run": dry_run, "changes": rows},
        lambda: _show_changes(pattern, changes, enabled=enabled, dry_run=dry_run),
    )


def _show_changes(
    pattern: TopicPattern, changes: Sequence[admin_pb2.TopicChange], *, enabled: bool, dry_run: bool
) -> None:
    name = str(pattern.topic or pattern)
    if dry_run:
        CHANGES.show(changes)
    verb = "enable" if enabled else "disable"
    counts = Counter(one.outcome.replace("-", " ") for one in changes)
    counted = ", ".join(f"{show.number(count)} {outcome}" for outcome, count in counts.items()) or "no topics so far"
    several = pattern.topic is None or len(changes) > 1
    click.echo((f"would {verb} {name}" if dry_run else f"{verb}d {name}") + (f": {counted}" if several else ""))
    for one in changes:
        if one.outcome == "left-alone" and not dry_run:
            show.note(f"left alone: {one.topic}: {one.reason}")


CHANGES: show.Table[admin_pb2.TopicChange] = show.Table(
    ("TOPIC", "topic"), ("OUTCOME", "outcome"), ("REASON", "reason")
)
