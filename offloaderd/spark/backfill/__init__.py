"""Backfill of history: the driver."""
