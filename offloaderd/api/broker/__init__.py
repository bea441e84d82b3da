"""BrokerService: one ledger at a time, for a LedgerOffloader in a broker."""
