"""How long the tier keeps a topic."""
