"""The brokers' admin API: is it there, and is our token right.

It is asked about a topic that does not exist, as asking about one that does would make a broker load it. Its answers do
not tell the time (Jetty sends no Date unless told to), so there is no clock to compare.
"""

from collections.abc import AsyncGenerator

from offloaderd.core.errors import Transient
from offloaderd.core.model import TopicName
from offloaderd.daemon.doctor.finding import Case, CheckResult, Finding, fail, ok, skipped
from offloaderd.ledgers.pulsar.admin import PulsarAdmin

NOT_SET = "pulsar.admin_url is not set: an idle open ledger hides its last entries until it goes on or closes"
UNREACHABLE = (
    "let this machine reach pulsar.admin_url, and the brokers that it redirects to; it is a broker's or proxy's web "
    "service URL"
)


async def admin_checks(case: Case) -> AsyncGenerator[CheckResult, None]:
    """Ask the admin API, if there is one to be asked."""
    url = case.settings.pulsar.admin_url
    if case.settings.ledgers.kind != "bookkeeper":
        return
    if url is None:
        yield skipped("admin api", NOT_SET)
    else:
        yield await case.check("admin api", _asked(case, url))


async def _asked(case: Case, url: str) -> Finding:
    options = case.settings.pulsar
    tenant, namespace = (case.topic.tenant, case.topic.namespace) if case.topic else ("public", "default")
    async with PulsarAdmin(url, options) as admin:
        try:
            await admin.last_confirmed(TopicName.parse(f"persistent://{tenant}/{namespace}/{case.probe_name()}"))
        except Transient as error:
            return fail(error.message, error.hint or UNREACHABLE)
    secret = "with our token" if options.admin_token or options.admin_token_file else "without a token"
    return ok(f"{url} answers {secret}")
