"""QuotaService: quotas of tenants and namespaces, their use, and the sums for bills."""

from dataclasses import dataclass

import structlog

from offloaderd.api.admin import checked_prefix
from offloaderd.api.calls import Context
from offloaderd.api.gate import name_of_caller
from offloaderd.api.paging import page
from offloaderd.core.names.patterns import Scope
from offloaderd.core.quotas import NONE, QUOTAS, Quotas, named
from offloaderd.fleet.engine import Engine
from offloaderd.fleet.quotas import used_of
from offloaderd.format.parsing import filled
from offloaderd.policy import quotas as stored
from offloaderd.policy.quotas import checked, level_of
from offloaderd.protocol.v1 import quota_pb2 as pb
from offloaderd.protocol.v1 import quota_pb2_grpc

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class QuotaService(quota_pb2_grpc.QuotaServiceServicer):
    """Answers from the accounts of this daemon, and from the usage that the others have written."""

    engine: Engine
    daemon_id: str

    async def ListQuotas(self, request: pb.ListQuotasRequest, context: Context) -> pb.ListQuotasResponse:
        """Return the quotas and their use. Raises InvalidInput, Transient."""
        within, keeper = Scope(*checked_prefix(request.prefix)), self.engine.quotas
        await keeper.refresh_if_changed()
        scopes = sorted((one for one in {Scope(), *keeper.scopes()} if within.covers(one)), key=named)
        shown, token = page(request, scopes, named)
        return pb.ListQuotasResponse(
            daemon_id=self.daemon_id,
            namespaces=map(self._level, shown),
            counted_age_s=keeper.counted_age_s(),
            next_page_token=token,
        )

    def _level(self, scope: Scope) -> pb.NamespaceQuotas:
        keeper, accounts = self.engine.quotas, self.engine.context.accounts
        known, account = keeper.levels.get(scope), accounts.find(scope)
        message = pb.NamespaceQuotas(name=named(scope))
        if known is not None:
            message.own.CopyFrom(filled(pb.Quotas, known.quotas))
            message.changed_ms, message.changed_by = known.changed_ms, known.changed_by
        if scope.tenant is not None:
            message.effective.CopyFrom(filled(pb.Quotas, accounts.effective(scope)))
        if account is not None:
            used = {name: used_of(account, name) for name in QUOTAS}
            message.used.CopyFrom(pb.Quotas(**used))
        if scope.namespace is not None:
            sums, since_ms = keeper.sums(scope)
            message.written_bytes, message.read_bytes = sums.written_bytes, sums.read_bytes
            message.requests, message.stored_byte_hours = sums.requests, sums.stored_byte_s / 3600
            message.since_ms = since_ms
        return message

    async def SetQuotas(self, request: pb.SetQuotasRequest, context: Context) -> pb.SetQuotasResponse:
        """Replace the quotas of a level. Raises InvalidInput with every mistake, Transient."""
        scope = level_of(request.level)
        quotas = checked({field.name: value for field, value in request.quotas.ListFields()})
        keeper, metadata = self.engine.quotas, self.engine.context.metadata
        await keeper.refresh_if_changed()
        before = keeper.levels.get(scope)
        if not request.dry_run:
            clock, by = self.engine.context.upload_context.clock, name_of_caller(context)
            await stored.put(metadata, clock, scope, quotas, by=by)
            log.info("quotas.set", level=named(scope), by=by, **filled_values(quotas))
            await keeper.refresh_if_changed()
        answer = pb.SetQuotasResponse(notes=_notes(scope, quotas, self.engine))
        if before is not None:
            answer.before.CopyFrom(filled(pb.Quotas, before.quotas))
        return answer


def filled_values(quotas: Quotas) -> dict[str, int]:
    """Return the values that are set."""
    return {name: value for name in QUOTAS if (value := getattr(quotas, name)) is not None}


def _notes(scope: Scope, quotas: Quotas, engine: Engine) -> list[str]:
    """Return notes about effects that an operator may not expect."""
    account = engine.context.accounts.find(scope)
    uses = {name: used_of(account, name) or 0 for name in ("stored_bytes", "topics")} if account is not None else {}
    notes = [
        f"{name} of {named(scope)} is {used} already, beyond the quota"
        for name, used in uses.items()
        if (limit := quotas.limit(name)) is not None and used > limit
    ]
    if scope.tenant is not None and scope.namespace is None and quotas != NONE:
        notes.append(f"these hold for all namespaces of {scope.tenant} together")
    return notes
