"""A read-only BookKeeper client and the ledger source over it: the wire, who is asked, what is made of the answers.

The modules that know bytes do no I/O: `framing`, `v2`, `v3` and `auth` are the wire, `entry` the digests,
`ledger_metadata` a ledger's znode, `layout` its path, `registration` a bookie's addresses, `status`
what an answer's code means. WIRE.md specifies them. `bookies` talks to bookies by id, over `connection`s.

`source` is what the daemon uses. Below it: `directory` remembers nodes, `topic` knows a topic's ledgers and follows
them, `tail` how far an open one may be read, `reading` turns a range into runs of verified entries, `replicas` searches
for a sound copy of each, by the table of faults at its head; `limits` and `order` say when and whom it asks.
"""
