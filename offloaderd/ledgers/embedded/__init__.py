"""The embedded ledger store, on SQLite."""
