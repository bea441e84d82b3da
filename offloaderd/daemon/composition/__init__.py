"""The parts of a running daemon, put together."""
