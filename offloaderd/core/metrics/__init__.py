"""The metrics of the daemon, on one registry."""
