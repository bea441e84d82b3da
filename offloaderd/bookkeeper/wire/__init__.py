"""The bytes of BookKeeper's protocol, versions 2 and 3 (WIRE.md)."""
