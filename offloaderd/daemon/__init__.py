"""The daemon: composition, settings, HTTP, log, doctor."""
