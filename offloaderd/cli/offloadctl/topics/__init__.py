"""Commands about topics and their policies."""
