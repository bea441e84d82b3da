"""The other services, one a module."""
