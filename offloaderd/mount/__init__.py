"""Topics out of a bucket into the metadata of another Pulsar cluster: `offloaderd mount`. No part of the daemon."""
