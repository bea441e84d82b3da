"""The content of entries, from brokers and producers."""
