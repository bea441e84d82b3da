"""Several processes of a host under one parent: supervision, and one HTTP server for all of them."""
