"""Names of topics and of their nodes, and patterns for names."""
