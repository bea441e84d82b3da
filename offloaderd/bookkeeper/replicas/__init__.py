"""Reading entries from the replicas of a ledger."""
