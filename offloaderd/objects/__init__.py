"""Object stores: where segments live."""
