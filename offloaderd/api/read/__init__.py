"""ReadService: entries, messages and seeks."""
