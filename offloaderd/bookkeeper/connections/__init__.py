"""Connections to bookies: handshake, authentication, windows."""
