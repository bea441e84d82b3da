"""Commands about history: backfill, convert, rollback."""
