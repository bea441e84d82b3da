"""Generated from protos/offloaderd/v1 by `make protos`."""
