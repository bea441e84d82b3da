"""Real servers without Docker or root, as child processes of the daemon."""
