"""The status page: what the daemon does, for people, over HTTP. It shows and takes no orders."""
