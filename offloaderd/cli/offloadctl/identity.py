"""`offloadctl identity`: the deployment, source and history of the data, and the acceptance of refusals."""

import click

from offloaderd.cli import options, show
from offloaderd.cli.options import Session
from offloaderd.core.model import RefusalKind, TopicName
from offloaderd.protocol.conversion import as_json
from offloaderd.protocol.status import refusal_text
from offloaderd.protocol.v1 import identity_pb2


@click.group()
@options.common
def identity(session: Session) -> None:
    """Show the identity of the data, and accept what was refused.

    If metadata, bucket or source of a topic seem to belong to another history, nothing of it is deleted or granted
    until the cause is removed, or an operator has accepted the finding.
    """


@identity.command("show", short_help="Show the deployment, its source and places, and refusals.")
@click.argument("topic", type=options.TOPIC, required=False)
@options.common
def show_identity(session: Session, topic: TopicName | None) -> None:
    """Show the deployment, its source and places; for a topic also its refusals and what was accepted.

    \b
    Examples:
      offloadctl identity show
      offloadctl identity show orders
    """

    found = session.ask(lambda client: client.identity(topic or ""))
    document = {
        "deployment": found.deployment_id or None,
        "source": {"kind": found.source_kind, "id": found.source_id or None} if found.source_kind else None,
        **as_json(found, leave_out=("deployment_id", "source_kind", "source_id", "places")),
        "places": [
            {
                "deployment": one.deployment_id or None,
                "daemon": one.daemon_id or None,
                **as_json(one, leave_out=("deployment_id", "daemon_id"), kept=("bucket", "prefix")),
            }
            for one in found.places
        ],
    }
    session.tell(document, "\n".join(f"{label + ':':14} {text}" for label, text in _facts(found)))


@identity.command(short_help="Accept a refused identity.")
@click.argument("topic", type=options.TOPIC, required=False)
@click.option("--kind", type=click.Choice([kind.value for kind in RefusalKind]), help="Which refusal of the topic.")
@click.option("--place", is_flag=True, help="The places that another deployment has marked are this one's.")
@click.option("--source", is_flag=True, help="The ledger source of the daemon is the right one.")
@click.option("--apply", is_flag=True, help="Accept it. Without this the meaning is shown, and nothing is changed.")
@options.YES
@options.common
def accept(
    session: Session, *, topic: TopicName | None, kind: str | None, place: bool, source: bool, apply: bool, yes: bool
) -> None:
    """Accept what is refused: one kind of refusal of a topic, of all places, or of the source. Shows its meaning first.

    Only the present finding is accepted; another one of the same kind is refused again. The topic continues within half
    a minute.

    \b
    Examples:
      offloadctl identity accept orders --kind metadata-went-back
      offloadctl identity accept orders --kind metadata-went-back --apply
      offloadctl identity accept --place --apply --yes
    """
    if [topic is not None, place, source].count(True) != 1 or (topic is not None) is (kind is None):
        raise click.UsageError("name a topic and its --kind, or give --place, or --source")
    if apply and not yes:
        options.confirm(f"Accept {kind or ('the places' if place else 'the source')}? It cannot be taken back")
    wanted = {"places": place, "source": source, "dry_run": not apply}
    believed = session.ask(lambda client: client.accept_identity(topic or "", kind=kind or "", **wanted))
    head = "taken as true from now on:" if apply else "with --apply this would be taken as true:"
    session.tell({"applied": apply, "believed": believed}, "\n  ".join([head, *believed]))


def _facts(found: identity_pb2.ShowIdentityResponse) -> list[tuple[str, str]]:
    lines = [("deployment", found.deployment_id or "none was made yet")]
    if found.deployment_id:
        lines.append(("made", f"{show.moment(found.made_ms)} by {found.made_by}"))
    if found.source_kind:
        lines.append(("source", f"{found.source_kind} {found.source_id}"))
    if found.source_found and found.source_found != found.source_id:
        lines.append(("source found", found.source_found))
    for one in found.places:
        whose = one.error or (f"deployment {one.deployment_id}" if one.deployment_id else "not marked yet")
        other = ": ANOTHER DEPLOYMENT" if one.other else ""
        lines.append(("place", f"bucket {one.bucket!r}, prefix {one.prefix!r}: {whose}{other}"))
    lines += [("REFUSED", refusal_text(one)) for one in found.refusals]
    lines += [
        ("accepted", f"{one.kind} ({one.evidence}) by {one.by}, {show.moment(one.at_ms)}") for one in found.accepted
    ]
    return lines
