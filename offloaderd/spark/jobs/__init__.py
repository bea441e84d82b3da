"""The common part of backfill and conversion, and the work of their executors."""
