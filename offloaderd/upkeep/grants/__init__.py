"""Permission to delete a ledger from its source."""
