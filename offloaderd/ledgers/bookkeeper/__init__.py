"""A read-only BookKeeper client: what is said on the wire, what entries and metadata look like, who is asked.

The modules here that know bytes do no I/O: `framing`, `v2`, `v3` and `auth` are the wire, `entry` the digests,
`ledger_metadata` and `ledger_text` a ledger's znode, `layout` its path, `registration` a bookie's addresses, `status`
what an answer's code means. WIRE.md specifies them.
"""
