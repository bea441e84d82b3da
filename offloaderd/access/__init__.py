"""Who calls, and what they may: identities, tokens, roles, certificates and limits. Nothing here knows gRPC."""
