"""What brokers and producers put into an entry."""
