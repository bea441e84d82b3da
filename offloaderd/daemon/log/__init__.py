"""The log: format, levels, modules, noise."""
