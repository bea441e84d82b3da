"""What tests/bookkeeper_servers.py starts: bookies and Pulsar from downloaded jars, and BookKeeper's Java client."""
