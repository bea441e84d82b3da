"""Generated from protos/bookkeeper by `make protos`."""
