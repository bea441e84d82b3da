"""Access of callers: identities, tokens, roles, certificates and limits. Nothing here imports gRPC."""
