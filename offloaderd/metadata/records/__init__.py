"""Records of the nodes: frozen values with `encode(value)` and `decode(data, path=...)`; of several, by their names.

`decode` raises CorruptData with the node's path as its key for bytes that are not such a record.
"""
