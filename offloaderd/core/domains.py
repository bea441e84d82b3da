"""Domains of Pulsar's topics: `persistent` is offloaded; `segment` (PIP-460), which has ledgers as well, is not.

An unsupported domain is reported by name, so that its topics are not believed to be safe. Other names in the place of a
domain are no domains: in Pulsar's first version tenants contained clusters.
"""

from offloaderd.core.errors import DomainNotCovered, InvalidInput

TAKEN = "persistent"
NOT_COVERED = ("segment",)
HINT_NOT_COVERED = (
    "its entries stay with its broker and BookKeeper, and nothing here deletes them; offload it with Pulsar's own "
    "driver, or let its namespace go without"
)


def refused(text: str, domain: str, hint: str) -> InvalidInput:
    """Return the error for a topic of an unsupported domain; `hint` describes the form of names."""
    what = f"topic {text!r}: only persistent topics are stored, not {domain!r}"
    return DomainNotCovered(what, hint=HINT_NOT_COVERED) if domain in NOT_COVERED else InvalidInput(what, hint=hint)
