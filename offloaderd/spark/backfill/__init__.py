"""Backfill of history: the driver's side."""
