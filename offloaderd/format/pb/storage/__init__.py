"""Generated from protos/offloaderd/storage by `make protos`."""
