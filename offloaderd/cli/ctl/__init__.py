"""offloadctl's subcommands, one a module; `options.py` holds what they share."""
