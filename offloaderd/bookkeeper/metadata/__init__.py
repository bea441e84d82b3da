"""What BookKeeper keeps of ledgers and bookies in ZooKeeper, parsed."""
