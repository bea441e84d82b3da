"""offloaderd's subcommands, one a module."""
