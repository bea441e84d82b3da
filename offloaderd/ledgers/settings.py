"""Settings of the ledger source: where entries come from and can be read again."""

from typing import Literal

from pydantic import Field

from offloaderd.core.section import Bytes, OptionalSecret, OptionalText, Seconds, Section, Url

GiB = 1024**3


class LedgersSettings(Section):
    """The ledger source: where entries can be read again."""

    kind: Literal["bookkeeper", "embedded", "none"] = "none"
    """bookkeeper: the ledgers of a Pulsar cluster are read where they are, see [bookkeeper] and docs/bookkeeper.md.
    embedded: the daemon keeps ledgers itself and takes entries over gRPC. none: brokers push all entries; the local
    disk is used only for a spill, if spill.directory is set."""

    directory: str = Field(default="/var/lib/offloaderd/ledgers", min_length=1)
    """Where the embedded store keeps its files."""

    ledger_entries_max: int = Field(default=50_000, ge=1, le=2**31 - 1)
    """Entries after which a ledger of the embedded store closes; Pulsar's default."""

    ledger_bytes_max: Bytes = Field(default=2 * GiB, ge=1)
    """Payload bytes after which a ledger of the embedded store closes; Pulsar's default."""

    ledger_age_max_s: Seconds = Field(default=14_400.0, gt=0)
    """Age after which a ledger of the embedded store with entries closes; Pulsar's default of four hours."""


class PulsarSettings(Section):
    """The brokers' admin API. Optional: it is asked for the last confirmed entry of topics without traffic, and for the
    retention of a namespace when a policy is compared with it."""

    admin_url: Url = Field(default=None, examples=["https://pulsar.example:8443"])
    """URL of a broker or proxy. Not set: the API is not used. The last entries of an open ledger without traffic are
    then unknown until the next entry, an explicit LAC or the close."""

    admin_token: OptionalSecret = Field(default=None, examples=[""])
    """Token that may read topic statistics; better given as OFFLOADERD__PULSAR__ADMIN_TOKEN than in a file. Never
    shown."""

    admin_token_file: OptionalText = Field(default=None, examples=["/var/run/secrets/pulsar/token"])
    """File with the token, in place of admin_token. It is read for each request, so the token may be replaced."""

    admin_ca_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/pulsar-ca.pem"])
    """Authorities that sign the brokers' certificates (PEM). Not set: those of the system."""

    admin_quiet_s: Seconds = Field(default=1.0, ge=0.1, le=600)
    """How long an open ledger with entries that are not known to be confirmed must get none before the API is asked;
    then again after 2, 4 .. 30 s as long as nothing changes."""
