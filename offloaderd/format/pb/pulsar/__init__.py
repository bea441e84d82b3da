"""Generated from protos/pulsar by `make protos`."""
