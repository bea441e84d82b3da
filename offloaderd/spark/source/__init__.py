"""The data source format("offload"), in batches and as a stream."""
