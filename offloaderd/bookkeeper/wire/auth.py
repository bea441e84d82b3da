"""The message with which both protocols carry authentication: a plugin's name and the plugin's own bytes.

A bookie without authentication answers with the name `AuthDisabledPlugin`: that counts as done. WIRE.md, section 4.
"""

from dataclasses import dataclass, field
from typing import Final

from offloaderd.bookkeeper.wire.status import BadAnswer
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.format.parsing import parse_message
from offloaderd.format.pb.bookkeeper import protocol_pb2 as pb

AUTH_DISABLED_PLUGIN: Final = "AuthDisabledPlugin"
SASL_PLUGIN: Final = "sasl"
AUTH_BYTES_MAX: Final = 64 * 1024
"""No token of a known mechanism comes near."""


@dataclass(frozen=True, slots=True)
class AuthToken:
    """One step of an authentication, in either direction; the payload is kept out of logs."""

    plugin: str
    payload: bytes = field(repr=False)

    @property
    def disabled(self) -> bool:
        """Whether the bookie says that it wants no authentication."""
        return self.plugin == AUTH_DISABLED_PLUGIN


def encode_auth_message(token: AuthToken) -> bytes:
    """Return the bare message; raises InvalidInput for a token without a name or out of all proportion."""
    if not token.plugin or len(token.payload) > AUTH_BYTES_MAX:
        raise InvalidInput(f"no auth message can be made for plugin {token.plugin!r} ({len(token.payload)} bytes)")
    return pb.AuthMessage(pluginName=token.plugin, payload=token.payload).SerializeToString()


def decode_auth_message(data: bytes) -> AuthToken:
    """Read the bare message; raises BadAnswer."""
    try:
        message = parse_message(pb.AuthMessage, data, key="an auth message", at=0)
    except CorruptData as error:
        raise BadAnswer(error.message) from None
    return AuthToken(message.pluginName, message.payload)
