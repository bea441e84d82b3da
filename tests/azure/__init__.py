"""Azure Blob Storage for tests: a service in the process, and Azurite."""
