"""offloadctl's subcommands: a module has one, or a few about one thing; `cli/options.py` has what they share."""
