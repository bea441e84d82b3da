"""offloadctl's subcommands, one a module; `cli/options/common.py` holds what they share."""
