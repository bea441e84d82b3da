"""A control plane of Kubernetes for the tests of deploy/, and what it is built from."""
