"""offloaderd's subcommands."""
