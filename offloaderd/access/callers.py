"""By which names a caller is known: those of a certificate that the TLS handshake has verified, or a token's."""

from collections.abc import Mapping
from typing import Any

from offloaderd.access.roles import Identity, Kind, checked_identity
from offloaderd.core.errors import InvalidInput, Unauthenticated

NAMES_MAX = 32
"""Alternative names of a certificate that are looked at."""
PROPERTIES = {Kind.CERTIFICATE: "x509_common_name", Kind.URI: "peer_uri", Kind.DNS: "peer_dns"}
"""Where gRPC keeps the names of a certificate."""


def of_certificate(found: Mapping[str, Any]) -> tuple[Identity, ...]:
    """Return all names in a certificate, the one that it is shown by first. Raises Unauthenticated if there is none.

    A common name counts only if there is exactly one; a name that cannot be told apart by eye is none.
    """
    names: list[Identity] = []
    for kind, key in PROPERTIES.items():
        given = list(found.get(key, ()))
        if kind is Kind.CERTIFICATE and len(given) != 1:
            continue
        for one in given[:NAMES_MAX]:
            try:
                names.append(Identity(kind, checked_identity(bytes(one).decode())))
            except (InvalidInput, UnicodeDecodeError):
                continue
    if not names:
        raise Unauthenticated(
            "the certificate names nobody",
            hint="it needs exactly one common name (CN), or alternative names: URI (SPIFFE) or DNS",
        )
    return tuple(names)


def bearer_text(metadata: Any) -> str | None:  # noqa: ANN401 - pairs, as gRPC gives them
    """Return the token that was sent. Raises Unauthenticated when there are several, or another scheme."""
    given = [value for key, value in metadata if key == "authorization"]
    if not given:
        return None
    scheme, _, token = str(given[0]).partition(" ")
    if len(given) > 1 or scheme.lower() != "bearer" or not token:
        raise Unauthenticated("malformed authorization", hint="send one `authorization: Bearer TOKEN`")
    return token.strip()
