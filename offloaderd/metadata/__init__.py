"""The metadata store: committed segments, owners of topics, policies."""
